//! Old copies of members: in the place of the member, beside it, or from before a growth. The tests follow the printed
//! remedies.

use crate::mirrors::*;
use crate::nbd::Client;
use crate::support::*;

/// The seed of the session that the copy is from, and of the one after it.
const SEEDS: (u64, u64) = (1, 1000);

/// An array of two files that served twice and was killed both times, with an old copy of the second file, and the
/// present path of that file.
struct Setup {
    daemon: Daemon,
    /// The member's original path, where the old copy is.
    name: String,
    /// The member's present path.
    right: String,
}

/// `right`: where the second member is moved to, below the folder.
fn setup(level: &str, right: &str) -> Setup {
    let mut daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let mut client = create(&daemon, level, &[a, b], &[]);
    write_blocks(&mut client, SEEDS.0);
    drop(client);
    daemon.kill();
    let copy = daemon.folder.join("copy");
    std::fs::copy(b, &copy).expect("a file can be copied");
    daemon.start_again();
    let mut client = self::client(&daemon);
    write_blocks(&mut client, SEEDS.1);
    drop(client);
    daemon.kill();
    let right = daemon.folder.join(right);
    if let Some(folder) = std::path::Path::new(&right).parent() {
        std::fs::create_dir_all(folder).expect("a folder can be made");
    }
    std::fs::rename(b, &right).expect("a file can be moved");
    std::fs::rename(&copy, b).expect("a file can be moved");
    Setup { name: b.clone(), daemon, right }
}

/// Blocks on both members, also where the members are concatenated.
fn blocks() -> impl Iterator<Item = u64> {
    (0..20).chain(1100..1110)
}

fn write_blocks(client: &mut Client, seed: u64) {
    let last = client.size_bytes / BLOCK;
    write(client, blocks().filter(|block| *block < last), seed);
    client.flush().expect("it flushes");
}

fn check_blocks(daemon: &Daemon, seed: u64) {
    let mut client = self::client(daemon);
    let last = client.size_bytes / BLOCK;
    check(&mut client, blocks().filter(|block| *block < last), seed);
}

/// Returns the commands that `braid status` recommends, without the program's name.
fn commands(daemon: &Daemon) -> Vec<Vec<String>> {
    let said = said(&daemon.any(&["status"]));
    let mut found = Vec::new();
    for part in said.split("braid array assemble ").skip(1) {
        let words = part
            .lines()
            .next()
            .unwrap_or_default()
            .split([' ', '\n', ')', ';', ','])
            .take_while(|word| !word.is_empty());
        found.push(["array", "assemble"].into_iter().chain(words).map(str::to_owned).collect());
    }
    assert!(!found.is_empty(), "{said}");
    found
}

/// Checks that the array does not serve, and reports this disk as an old copy.
fn is_refused(setup: &Setup) {
    let shown = show(&setup.daemon);
    assert_eq!(shown["state"], "failed", "{shown}");
    let attention = shown["attention"].to_string();
    assert!(attention.contains("old copy") && attention.contains(&setup.name), "{shown}");
    assert_ne!(setup.daemon.any(&["status", "--check"]).status.code(), Some(0));
}

#[test]
fn an_old_copy_in_place_of_a_member_is_refused_and_the_right_disk_is_used() {
    for level in ["raid0", "concat", "raid1"] {
        let mut setup = setup(level, "elsewhere/b");
        setup.daemon.start_again();
        is_refused(&setup);
        // As the remedy says: the right disk is named, and the old copy stays where it is.
        let mut command = commands(&setup.daemon).into_iter().find(|words| words.iter().any(|word| word == "--disk"));
        let command = command.as_mut().expect("it is said how the right disk is named");
        let place = command.iter().position(|word| word == "DISK").expect("a disk is to be named");
        command[place].clone_from(&setup.right);
        setup.daemon.braid(&command.iter().map(String::as_str).collect::<Vec<_>>());
        check_blocks(&setup.daemon, SEEDS.1);
        assert!(setup.daemon.events().contains("disk_is_a_copy"), "{}", setup.daemon.events());
        setup.daemon.restart(true);
        check_blocks(&setup.daemon, SEEDS.1);
        // The status never reports the copy as needing no action.
        let said = setup.daemon.refused_any(&["array", "assemble", "--disk", &setup.name]);
        assert!(said.contains("copy") && said.contains(&setup.name) && !said.contains("nothing to do"), "{said}");
        let said = setup.daemon.refused_any(&["array", "assemble", "data", "--disk", &setup.name]);
        assert!(said.contains("copy") && said.contains(&format!("braid disk wipe {}", setup.name)), "{level}: {said}");
        setup.daemon.braid(&["disk", "wipe", &setup.name, "--yes"]);
        check_blocks(&setup.daemon, SEEDS.1);
    }
}

#[test]
fn an_old_copy_is_used_or_left_out_only_by_force() {
    for level in ["raid0", "concat", "raid1"] {
        let mut setup = setup(level, "elsewhere/b");
        setup.daemon.start_again();
        is_refused(&setup);
        let forced = commands(&setup.daemon).into_iter().find(|words| words.iter().any(|word| word == "--force"));
        let forced = forced.expect("it is said how to go on without the right disk");
        setup.daemon.braid(&forced.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(show(&setup.daemon)["state"], "active");
        if level == "raid1" {
            check_blocks(&setup.daemon, SEEDS.1);
            assert_eq!(health(&setup.daemon), "degraded");
            // The status says how the copy becomes a member again.
            let events = setup.daemon.events();
            let add = format!("braid array add data {} --force", setup.name);
            assert!(events.contains(&add), "{events}");
            setup.daemon.braid(&["array", "add", "data", &setup.name, "--force"]);
            wait_for_health(&setup.daemon, "whole");
            setup.daemon.braid(&["array", "fail", "data", "0"]);
            check_blocks(&setup.daemon, SEEDS.1);
        } else {
            // Data on the copy are as old as the copy, and all other data are current.
            let mut client = self::client(&setup.daemon);
            check(&mut client, [0], SEEDS.1);
        }
    }
}

#[test]
fn the_right_file_beside_an_old_copy_is_found() {
    for level in ["raid0", "concat", "raid1"] {
        let mut setup = setup(level, "b.right");
        setup.daemon.start_again();
        check_blocks(&setup.daemon, SEEDS.1);
        let shown = show(&setup.daemon);
        assert_eq!((&shown["state"], &shown["members"][1]["disk"]), (&"active".into(), &setup.right.as_str().into()));
        let events = setup.daemon.events();
        let is_reported = |line: &str| line.contains("disk_is_a_copy") && line.contains(&setup.name);
        assert!(events.lines().any(is_reported), "{events}");
        if level == "raid1" {
            assert_eq!(health(&setup.daemon), "whole");
        }
        // The daemon records the path of the right file, and no longer reads the copy.
        setup.daemon.restart(true);
        check_blocks(&setup.daemon, SEEDS.1);
    }
}

#[test]
fn an_old_copy_from_before_a_growth_does_not_block_a_start_without_it() {
    let mut daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let mut client = create(&daemon, "raid1", &[a, b], &[]);
    write_blocks(&mut client, SEEDS.0);
    drop(client);
    daemon.stop();
    let copy = daemon.folder.join("copy");
    std::fs::copy(b, &copy).expect("a file can be copied");
    daemon.start_again();
    for path in [a, b] {
        let file = std::fs::File::options().write(true).open(path).expect("a file can be opened");
        file.set_len(160 * MIB).expect("a file can be made larger");
    }
    daemon.braid(&["array", "grow", "data"]);
    let mut client = self::client(&daemon);
    write_blocks(&mut client, SEEDS.1);
    drop(client);
    daemon.kill();
    std::fs::create_dir_all(daemon.folder.join("elsewhere")).expect("a folder can be made");
    let right = daemon.folder.join("elsewhere/b");
    std::fs::rename(b, &right).expect("a file can be moved");
    std::fs::rename(&copy, b).expect("a file can be moved");
    daemon.start_again();
    let setup = Setup { name: b.clone(), daemon, right };
    is_refused(&setup);
    let forced = commands(&setup.daemon).into_iter().find(|words| words.iter().any(|word| word == "--force"));
    let forced = forced.expect("it is said how to go on without the right disk");
    setup.daemon.braid(&forced.iter().map(String::as_str).collect::<Vec<_>>());
    check_blocks(&setup.daemon, SEEDS.1);
    assert_eq!(health(&setup.daemon), "degraded");
    let events = setup.daemon.events();
    assert!(
        events.contains("too small") && events.contains(&format!("braid disk wipe {b}", b = setup.name)),
        "{events}"
    );
    setup.daemon.braid(&["disk", "wipe", &setup.name, "--yes"]);
    setup.daemon.braid(&["array", "add", "data", &setup.right, "--force"]);
    wait_for_health(&setup.daemon, "whole");
    setup.daemon.braid(&["array", "fail", "data", "0"]);
    check_blocks(&setup.daemon, SEEDS.1);
}
