//! Old copies of members: put in the place of the member, laid beside it, from before a growth. What is said is then done.

use crate::mirrors::*;
use crate::nbd::Client;
use crate::support::*;

/// The session that the copy is from, and the one after it.
const SEEDS: (u64, u64) = (1, 1000);

/// An array of two files that served twice and was killed both times, with an old copy of the second file; and where the file is now.
struct Bed {
    daemon: Daemon,
    /// Where the member was, and the old copy is.
    name: String,
    /// Where the member is.
    right: String,
}

/// `right`: where the second member is moved to, below the folder.
fn bed(level: &str, right: &str) -> Bed {
    let mut daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let mut client = create(&daemon, level, &[a, b], &[]);
    put(&mut client, SEEDS.0);
    drop(client);
    daemon.kill();
    let copy = daemon.folder.join("copy");
    std::fs::copy(b, &copy).expect("a file can be copied");
    daemon.start_again();
    let mut client = self::client(&daemon);
    put(&mut client, SEEDS.1);
    drop(client);
    daemon.kill();
    let right = daemon.folder.join(right);
    if let Some(folder) = std::path::Path::new(&right).parent() {
        std::fs::create_dir_all(folder).expect("a folder can be made");
    }
    std::fs::rename(b, &right).expect("a file can be moved");
    std::fs::rename(&copy, b).expect("a file can be moved");
    Bed { name: b.clone(), daemon, right }
}

/// Blocks on both members, also where one stands behind the other.
fn blocks() -> impl Iterator<Item = u64> {
    (0..20).chain(1100..1110)
}

fn put(client: &mut Client, seed: u64) {
    let last = client.size_bytes / BLOCK;
    write(client, blocks().filter(|block| *block < last), seed);
    client.flush().expect("it flushes");
}

fn look(daemon: &Daemon, seed: u64) {
    let mut client = self::client(daemon);
    let last = client.size_bytes / BLOCK;
    check(&mut client, blocks().filter(|block| *block < last), seed);
}

/// What `braid status` says is to be done: the commands in it, without the program's name.
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

/// The array does not serve, and says that this disk is an old copy.
fn is_refused(bed: &Bed) {
    let shown = show(&bed.daemon);
    assert_eq!(shown["state"], "failed", "{shown}");
    let attention = shown["attention"].to_string();
    assert!(attention.contains("old copy") && attention.contains(&bed.name), "{shown}");
    assert_ne!(bed.daemon.any(&["status", "--check"]).status.code(), Some(0));
}

#[test]
fn an_old_copy_in_the_place_of_a_member_is_refused_and_the_right_disk_is_taken() {
    for level in ["raid0", "concat", "raid1"] {
        let mut bed = bed(level, "elsewhere/b");
        bed.daemon.start_again();
        is_refused(&bed);
        // As it is said: the right disk is named, and the old copy stays where it is.
        let mut command = commands(&bed.daemon).into_iter().find(|words| words.iter().any(|word| word == "--disk"));
        let command = command.as_mut().expect("it is said how the right disk is named");
        let place = command.iter().position(|word| word == "DISK").expect("a disk is to be named");
        command[place].clone_from(&bed.right);
        bed.daemon.braid(&command.iter().map(String::as_str).collect::<Vec<_>>());
        look(&bed.daemon, SEEDS.1);
        assert!(bed.daemon.events().contains("disk_is_a_copy"), "{}", bed.daemon.events());
        bed.daemon.restart(true);
        look(&bed.daemon, SEEDS.1);
        // Nobody says of the copy that there is nothing to do.
        let said = bed.daemon.refused_any(&["array", "assemble", "--disk", &bed.name]);
        assert!(said.contains("copy") && said.contains(&bed.name) && !said.contains("nothing to do"), "{said}");
        let said = bed.daemon.refused_any(&["array", "assemble", "data", "--disk", &bed.name]);
        assert!(said.contains("copy") && said.contains(&format!("braid disk wipe {}", bed.name)), "{level}: {said}");
        bed.daemon.braid(&["disk", "wipe", &bed.name, "--yes"]);
        look(&bed.daemon, SEEDS.1);
    }
}

#[test]
fn an_old_copy_is_used_or_left_out_by_force_alone() {
    for level in ["raid0", "concat", "raid1"] {
        let mut bed = bed(level, "elsewhere/b");
        bed.daemon.start_again();
        is_refused(&bed);
        let forced = commands(&bed.daemon).into_iter().find(|words| words.iter().any(|word| word == "--force"));
        let forced = forced.expect("it is said how to go on without the right disk");
        bed.daemon.braid(&forced.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(show(&bed.daemon)["state"], "active");
        if level == "raid1" {
            look(&bed.daemon, SEEDS.1);
            assert_eq!(health(&bed.daemon), "degraded");
            // It is said how the copy becomes a member again.
            let events = bed.daemon.events();
            let add = format!("braid array add data {} --force", bed.name);
            assert!(events.contains(&add), "{events}");
            bed.daemon.braid(&["array", "add", "data", &bed.name, "--force"]);
            wait_for_health(&bed.daemon, "whole");
            bed.daemon.braid(&["array", "fail", "data", "0"]);
            look(&bed.daemon, SEEDS.1);
        } else {
            // What stood on the copy is as old as that, and all else is there.
            let mut client = self::client(&bed.daemon);
            check(&mut client, [0], SEEDS.1);
        }
    }
}

#[test]
fn the_right_file_beside_an_old_copy_is_found_by_itself() {
    for level in ["raid0", "concat", "raid1"] {
        let mut bed = bed(level, "b.right");
        bed.daemon.start_again();
        look(&bed.daemon, SEEDS.1);
        let shown = show(&bed.daemon);
        assert_eq!((&shown["state"], &shown["members"][1]["disk"]), (&"active".into(), &bed.right.as_str().into()));
        let events = bed.daemon.events();
        let told = |line: &str| line.contains("disk_is_a_copy") && line.contains(&bed.name);
        assert!(events.lines().any(told), "{events}");
        if level == "raid1" {
            assert_eq!(health(&bed.daemon), "whole");
        }
        // The file that is it is known from now on, and the copy is not asked any more.
        bed.daemon.restart(true);
        look(&bed.daemon, SEEDS.1);
    }
}

#[test]
fn an_old_copy_from_before_a_growth_hinders_nobody_who_is_told_to_do_without() {
    let mut daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let mut client = create(&daemon, "raid1", &[a, b], &[]);
    put(&mut client, SEEDS.0);
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
    put(&mut client, SEEDS.1);
    drop(client);
    daemon.kill();
    std::fs::create_dir_all(daemon.folder.join("elsewhere")).expect("a folder can be made");
    let right = daemon.folder.join("elsewhere/b");
    std::fs::rename(b, &right).expect("a file can be moved");
    std::fs::rename(&copy, b).expect("a file can be moved");
    daemon.start_again();
    let bed = Bed { name: b.clone(), daemon, right };
    is_refused(&bed);
    let forced = commands(&bed.daemon).into_iter().find(|words| words.iter().any(|word| word == "--force"));
    let forced = forced.expect("it is said how to go on without the right disk");
    bed.daemon.braid(&forced.iter().map(String::as_str).collect::<Vec<_>>());
    look(&bed.daemon, SEEDS.1);
    assert_eq!(health(&bed.daemon), "degraded");
    let events = bed.daemon.events();
    assert!(events.contains("too small") && events.contains(&format!("braid disk wipe {b}", b = bed.name)), "{events}");
    bed.daemon.braid(&["disk", "wipe", &bed.name, "--yes"]);
    bed.daemon.braid(&["array", "add", "data", &bed.right, "--force"]);
    wait_for_health(&bed.daemon, "whole");
    bed.daemon.braid(&["array", "fail", "data", "0"]);
    look(&bed.daemon, SEEDS.1);
}
