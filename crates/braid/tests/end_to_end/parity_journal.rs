//! The journal of a raid5 or raid6 on a disk of its own: placed there, moved while the array serves, lost, and absent at a start.

use crate::mirror_crashes::out;
use crate::mirrors::*;
use crate::patient::PatientFio;
use crate::support::*;
use serde_json::Value;

/// Returns the location of the journal as the API reports it.
fn journal(daemon: &Daemon) -> Value {
    show(daemon)["redundancy"]["journal"].clone()
}

#[track_caller]
fn journal_is_on(daemon: &Daemon, disk: Option<&str>) {
    let journal = self::journal(daemon);
    let state = if disk.is_some() { Value::from("journal") } else { Value::Null };
    assert_eq!((journal["disk"].as_str(), &journal["state"]), (disk, &state), "{journal}");
    let text = daemon.braid(&["array", "show", "data"]);
    assert!(text.contains(disk.unwrap_or("on the members")), "{text}");
}

/// Returns the exit code of `braid status --check` and its text.
fn status(daemon: &Daemon) -> (Option<i32>, String) {
    let out = daemon.any(&["status", "--check"]);
    (out.status.code(), said(&out))
}

#[track_caller]
fn check_parity(daemon: &Daemon) {
    let check = daemon.any(&["array", "check", "data", "--wait"]);
    assert_eq!(check.status.code(), Some(0), "{}", said(&check));
}

const WRITE: [&str; 6] =
    ["--name=writer", "--ioengine=nbd", "--rw=randwrite", "--bssplit=4k/70:16k/20:64k/10", "--iodepth=8", "--size=16M"];
const VERIFY: [&str; 4] = ["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--randseed=11"];

#[test]
fn fio_finds_what_it_wrote_through_kills_and_while_the_journal_moves() {
    let mut daemon = Daemon::start();
    let [a, b, c, one, other] = &files(&daemon, &["a", "b", "c", "one", "other"])[..] else { panic!("five files") };
    drop(create(&daemon, "raid5", &[a, b, c], &["--journal", one]));
    journal_is_on(&daemon, Some(one));
    let mut writer = PatientFio::start(&daemon, &daemon.uri("data"));
    let fio = &mut writer.fio;
    let written = |daemon: &Daemon| show(daemon)["members"][0]["stats"]["writes"].as_u64().unwrap_or(0);
    let (mut kills, mut moved) = (0, 0);
    while fio.ended().is_none() && kills < 5 {
        let more = written(&daemon) + 150;
        wait_for("writes", || (written(&daemon) > more || fio.ended().is_some()).then_some(()));
        match kills {
            1 => {
                daemon.braid(&["array", "journal", "data", "--members"]);
                journal_is_on(&daemon, None);
                moved += 1;
            }
            2 => {
                daemon.braid(&["array", "journal", "data", other]);
                journal_is_on(&daemon, Some(other));
                moved += 1;
            }
            // The journal is being moved when the daemon is killed.
            3 => {
                let arguments = ["array", "journal", "data", "--members"];
                let mut moving = Running::start(&daemon.folder, "move", &mut daemon.command(&arguments));
                std::thread::sleep(std::time::Duration::from_millis(25));
                daemon.kill();
                moving.wait();
                daemon.start_again();
            }
            _ => {}
        }
        let more = written(&daemon) + 100;
        wait_for("writes", || (written(&daemon) > more || fio.ended().is_some()).then_some(()));
        if fio.ended().is_none() {
            daemon.kill();
            kills += 1;
            daemon.start_again();
        }
    }
    writer.succeeds();
    assert!(kills >= 3 && moved == 2, "it was over after {kills} kills: it is too fast for this test");
    wait_for_health(&daemon, "whole");
    check_parity(&daemon);
    assert!(!daemon.events().contains("journal_disk_lost"), "{}", daemon.events());
    // A clean stop, and the opposite case: each member in turn is computed from the others.
    daemon.restart(false);
    let mut client = self::client(&daemon);
    let before: Vec<Vec<u8>> = (0..256).map(|at| client.read(at * BLOCK, BLOCK as usize).expect("it reads")).collect();
    for disk in [a, b, c] {
        daemon.braid(&["array", "fail", "data", disk]);
        for (at, before) in (0..).zip(&before) {
            assert!(client.read(at * BLOCK, BLOCK as usize).expect("it reads") == *before, "block {at} without {disk}");
        }
        crate::mirror_crashes::bring_back(&daemon, disk);
        wait_for_health(&daemon, "whole");
    }
}

#[test]
fn the_journal_disk_is_lost_under_fio_and_the_array_goes_on() {
    let mut daemon = Daemon::start();
    let [a, b, c, fails, new] = &files(&daemon, &["a", "b", "c", "fails", "new"])[..] else { panic!("five files") };
    let faulty = format!("faulty({fails},gone-after=600)");
    drop(create(&daemon, "raid5", &[a, b, c], &["--journal", &faulty]));
    journal_is_on(&daemon, Some(&faulty));
    let fio = |daemon: &Daemon, more: &[&str]| {
        let uri = format!("--uri={}", daemon.uri("data"));
        let said = run("fio", &[&WRITE[..], &VERIFY, &[&uri], more].concat());
        assert!(said.contains("err= 0"), "{said}");
    };
    fio(&daemon, &["--do_verify=1", "--fsync=32"]);
    wait_for("the journal to be on the members", || journal(&daemon)["member"].is_null().then_some(()));
    // The array reports nothing else, and keeps reporting the lost journal disk until a command says where the journal is to be.
    let check_loss_reported = |daemon: &Daemon, disk: &str| {
        let shown = show(daemon);
        assert_eq!((shown["redundancy"]["health"].as_str(), out(daemon).len()), (Some("whole"), 0), "{shown}");
        assert_eq!(shown["redundancy"]["journal"]["lost_disk"], disk, "{shown}");
        assert!(shown["attention"].to_string().contains("the disk of its journal"), "{shown}");
        let (code, text) = status(daemon);
        assert!(code == Some(5) && text.contains("braid array journal data --members"), "{text}");
        let metrics = run("curl", &["-s", "--unix-socket", &daemon.folder.join("api.sock"), "http://braid/metrics"]);
        assert!(metrics.contains("braid_array_journal_lost{array=\"data\"} 1"), "{metrics}");
    };
    check_loss_reported(&daemon, &faulty);
    assert!(daemon.events().contains("journal_disk_lost"), "{}", daemon.events());
    assert_eq!(show(&daemon)["members"].as_array().map(Vec::len), Some(3), "no member has its number");
    // The loss persists across a kill.
    let mut client = self::client(&daemon);
    write(&mut client, 300..330, 1);
    hide(&daemon, fails);
    daemon.kill();
    daemon.start_again();
    check_loss_reported(&daemon, &faulty);
    check(&mut self::client(&daemon), 300..330, 1);
    fio(&daemon, &["--verify_only=1"]);

    daemon.braid(&["array", "journal", "data", new]);
    journal_is_on(&daemon, Some(new));
    assert_eq!((status(&daemon).0, &journal(&daemon)["lost_disk"]), (Some(0), &Value::Null));
    assert!(daemon.events().contains("journal_moved"), "{}", daemon.events());
    // A crash together with the loss of the journal disk: flushed writes are in place, and others are old or new.
    let mut client = self::client(&daemon);
    write(&mut client, 330..360, 2);
    client.flush().expect("it flushes");
    // An acknowledged write survives without a flush, as long as only the daemon dies.
    for block in 380..400 {
        client.write(block * BLOCK + 4096, &noise(4096, block)).expect("it writes");
    }
    for block in 360..380 {
        client.send(0, crate::nbd::WRITE, block * BLOCK + 4096, 4096, &noise(4096, block)).expect("sent");
    }
    daemon.kill();
    hide(&daemon, new);
    daemon.start_again();
    check_loss_reported(&daemon, new);
    assert!(daemon.events().contains("journal_disk_lost"), "{}", daemon.events());
    check(&mut self::client(&daemon), 300..330, 1);
    check(&mut self::client(&daemon), 330..360, 2);
    for block in 380..400 {
        let back = self::client(&daemon).read(block * BLOCK + 4096, 4096).expect("it reads");
        assert!(back == noise(4096, block), "block {block} was answered");
    }
    fio(&daemon, &["--verify_only=1"]);
    check_parity(&daemon);
    // A command that leaves the journal on the members ends the report.
    daemon.braid(&["array", "journal", "data", "--members"]);
    assert_eq!((status(&daemon).0, &journal(&daemon)["lost_disk"]), (Some(0), &Value::Null));
    daemon.restart(true);
    assert_eq!(status(&daemon).0, Some(0), "{}", status(&daemon).1);
    for role in ["0", "1"] {
        daemon.braid(&["array", "fail", "data", role]);
        check(&mut self::client(&daemon), 300..330, 1);
        check(&mut self::client(&daemon), 330..360, 2);
        daemon.braid(&["array", "add", "data", [a, b][usize::from(role == "1")], "--wait"]);
        wait_for_health(&daemon, "whole");
    }
}

#[test]
fn raid6_survives_kills_while_its_members_fail_and_return_with_the_journal_on_a_disk() {
    crate::mirror_crashes::story("raid6", 4, 3, &["--chunk", "16K", "--journal", "file:{}/fast,size=80M"]);
}

/// One member writes slowly: when the daemon is killed, many stripes have new data and old parity, or the reverse.
#[test]
fn a_crash_together_with_the_loss_of_the_journal_disk_leaves_matching_parity() {
    const STRIPES: u64 = 60;
    let mut daemon = Daemon::start();
    let [a, b, c, fast] = &files(&daemon, &["a", "b", "c", "fast"])[..] else { panic!("four files") };
    let slow = format!("faulty({c},write-delay=60ms)");
    let mut client = create(&daemon, "raid5", &[a, b, &slow], &["--journal", fast]);
    let stripe = |at: u64| at * 2 * BLOCK;
    for ten in 0..STRIPES / 10 {
        client.write(stripe(10 * ten), &noise(stripe(10), ten)).expect("it writes");
    }
    client.flush().expect("it flushes");
    let old = |at: u64| noise(stripe(10), at / 10)[stripe(at % 10) as usize..][..4096].to_vec();
    for at in 0..STRIPES {
        client.send(0, crate::nbd::WRITE, stripe(at), 4096, &noise(4096, 1000 + at)).expect("sent");
        std::thread::sleep(std::time::Duration::from_millis(4));
    }
    daemon.kill();
    hide(&daemon, fast);
    daemon.start_again();
    journal_is_on(&daemon, None);
    check_parity(&daemon);
    let mut client = self::client(&daemon);
    let mut read = || (0..STRIPES).map(|at| client.read(stripe(at), 4096).expect("it reads")).collect::<Vec<_>>();
    let now = read();
    let newer = (0..).zip(&now).filter(|(at, now)| **now == noise(4096, 1000 + at)).count();
    assert!((0..).zip(&now).all(|(at, now)| *now == noise(4096, 1000 + at) || *now == old(at)), "neither old nor new");
    assert!(newer > 0, "nothing was written when it died");
    daemon.braid(&["array", "fail", "data", "0"]);
    assert!(read() == now, "what is computed is not what was there");
}

#[test]
fn impossible_requests_are_refused_with_a_remedy() {
    let daemon = Daemon::start();
    let [a, b, c, fast, d, e] = &files(&daemon, &["a", "b", "c", "fast", "d", "e"])[..] else { panic!("six files") };
    let refused = |status: i32, arguments: &[&str], words: &[&str]| {
        let said = daemon.refused(status, &[&["array"], arguments].concat());
        assert!(words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
    };
    let create = ["create", "data", "--level"];
    for level in ["concat", "raid0", "raid1", "raid10"] {
        refused(
            2,
            &[&create[..], &[level, "--journal", fast, a, b]].concat(),
            &["no journal", "--level raid5", "--level raid6"],
        );
    }
    let with = |disk: &str, words: &[&str], status: i32, more: &[&str]| {
        refused(status, &[&create[..], &["raid5", "--journal", disk, a, b, c], more].concat(), words);
    };
    with(a, &["named twice", "name each disk once"], 2, &[]);
    with(fast, &["named twice"], 2, &["--spare", fast]);
    let tiny = daemon.folder.sparse("tiny", 1 << 20);
    with(&tiny, &["tiny", "1056768"], 2, &[]);
    let full = daemon.folder.noise("full", 80 * MIB, 5);
    std::fs::File::options()
        .write(true)
        .open(&full)
        .and_then(|file| std::os::unix::fs::FileExt::write_all_at(&file, b"XFSB", 0))
        .expect("a file can be written");
    with(&full, &["not empty", "--force"], 4, &[]);
    // A file that was to be created for the journal is removed again.
    let made = daemon.folder.join("made");
    refused(2, &[&create[..], &["raid5", "--journal", &format!("file:{made},size=1M"), a, b, c]].concat(), &["made"]);
    assert!(std::fs::metadata(&made).is_err(), "the file is still there");
    assert_eq!(daemon.json(&["array", "list"])["arrays"].as_array().map(Vec::len), Some(0));

    // Members of 1 GiB have a larger journal than this disk holds: the refusal names the required size.
    let large: Vec<String> = (0..3).map(|i| daemon.folder.sparse(&format!("large{i}"), 1 << 30)).collect();
    let small = daemon.folder.sparse("small", 4 * MIB);
    let large = ["create", "large", "--level", "raid6", &large[0], &large[1], &large[2]];
    let said = daemon.refused(2, &[&["array"][..], &large, &["--journal", &small]].concat());
    let needed = said.split("take a disk of ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    let needed = needed.unwrap_or_else(|| panic!("it does not say how large it has to be: {said}"));
    assert!((4 * MIB..64 * MIB).contains(&needed), "{said}");
    daemon.braid(&[&["array"][..], &large].concat());
    let almost = daemon.folder.sparse("almost", needed - 4096);
    refused(2, &["journal", "large", &almost], &[&format!("take a disk of {needed} bytes or more")]);
    let enough = daemon.folder.sparse("enough", needed);
    daemon.braid(&["array", "journal", "large", &enough]);

    // Existing content is overwritten with `--force`, and not without it.
    daemon.braid(&["array", "create", "data", "--level", "raid5", "--journal", &full, "--force", a, b, c]);
    daemon.export("data");
    journal_is_on(&daemon, Some(&full));
    daemon.braid(&["array", "create", "copies", "--level", "raid1", d, e]);
    refused(2, &["journal", "copies", fast], &["raid1, which has no journal", "raid5, raid6"]);
    refused(2, &["journal", "copies", "--members"], &["no journal"]);
    refused(3, &["journal", "nobody", fast], &["nobody"]);
    refused(2, &["journal", "data"], &["--members"]);
    refused(2, &["journal", "data", fast, "--members"], &["--members"]);
    refused(4, &["journal", "data", fast], &["on a disk already", "full", "braid array journal data --members"]);
    refused(4, &["journal", "data", &full], &["on a disk already"]);
    daemon.braid(&["array", "journal", "data", "--members"]);
    refused(2, &["journal", "data", "--members"], &["on its members already"]);
    for used in [a, d, &enough] {
        refused(4, &["journal", "data", used], &["each member needs a disk of its own"]);
    }
    refused(2, &["journal", "data", &tiny], &["1056768"]);
    refused(2, &["journal", "data", &format!("file:{made},size=1M")], &["made"]);
    assert!(std::fs::metadata(&made).is_err(), "the file is still there");
    refused(2, &["journal", "data", "mem:64M"], &["is volatile"]);
    let other = daemon.folder.noise("other", 80 * MIB, 6);
    // The label was removed from the disk, and with it everything that it recorded.
    assert!(examined(&daemon, &full).contains("no Braid label"), "{}", examined(&daemon, &full));
    journal_is_on(&daemon, None);
    daemon.braid(&["array", "journal", "data", fast]);
    assert_eq!(status(&daemon).0, Some(0));

    // The journal disk holds no data: commands for members name the right command instead.
    let listed = daemon.braid(&["array", "list"]);
    assert!(
        listed.lines().any(|line| line
            .split_whitespace()
            .collect::<Vec<_>>()
            .ends_with(&["active", "whole", "3", "1"])
            && line.trim_start().starts_with("data")),
        "{listed}"
    );
    refused(4, &["remove", "data", fast], &["the disk of its journal", "braid array journal data --members"]);
    refused(2, &["replace", "data", "3", &other], &["the disk of its journal", "braid array journal data DISK"]);
    assert!(examined(&daemon, fast).contains("journal"), "{}", examined(&daemon, fast));
    let mut client = self::client(&daemon);
    write(&mut client, 0..20, 1);
    daemon.braid(&["array", "fail", "data", fast]);
    journal_is_on(&daemon, None);
    assert_eq!((journal(&daemon)["lost_disk"].as_str(), health(&daemon)), (Some(&**fast), "whole".to_owned()));
    assert!(daemon.events().contains("journal_disk_lost"), "{}", daemon.events());
    write(&mut client, 20..40, 1);
    check(&mut client, 0..40, 1);
    // The disk still bears a label of the array, and is not used without `--force`.
    refused(4, &["journal", "data", fast], &["not empty", "--force"]);
    daemon.braid(&["array", "journal", "data", fast, "--force"]);
    journal_is_on(&daemon, Some(fast));
    // An array with a journal disk grows, and its deletion releases the disk.
    let [x, y] = &files(&daemon, &["x", "y"])[..] else { panic!("two files") };
    daemon.braid(&["array", "grow", "data", x, y]);
    journal_is_on(&daemon, Some(fast));
    let mut client = self::client(&daemon);
    check(&mut client, 0..40, 1);
    write(&mut client, 3000..3020, 4);
    check(&mut client, 3000..3020, 4);
    check_parity(&daemon);
    drop(client);
    daemon.braid(&["array", "delete", "data", "--force", "--yes"]);
    for disk in [a, b, c, fast, x, y] {
        assert!(examined(&daemon, disk).contains("no Braid label"), "{}", examined(&daemon, disk));
    }
}

/// A starting daemon waits only briefly for disks that do not respond once it has all that an array needs. This array needs the slow disk.
#[test]
fn a_start_waits_for_a_slow_disk_that_the_array_needs() {
    let mut daemon = Daemon::start();
    let [a, b, c, fast] = &files(&daemon, &["a", "b", "c", "fast"])[..] else { panic!("four files") };
    let slow = format!("faulty({fast},read-delay=300ms@0-4K)");
    let mut client = create(&daemon, "raid5", &[a, b, c], &["--journal", &slow]);
    write(&mut client, 0..40, 1);
    drop(client);
    for kill in [true, false] {
        daemon.restart(kill);
        check(&mut self::client(&daemon), 0..40, 1);
        journal_is_on(&daemon, Some(&slow));
        // The status also reports hanging block devices of other tests.
        let text = status(&daemon).1;
        assert!(!text.contains("array data"), "{text}");
    }
}

/// Waits until a member has returned, by itself or by `array add`.
fn whole_again(daemon: &Daemon, disk: &str) {
    wait_for("the member to return", || {
        out(daemon).iter().for_each(|_| drop(daemon.any(&["array", "add", "data", disk])));
        (health(daemon) == "whole").then_some(())
    });
}

/// Returns what `braid disk examine` prints about a disk.
fn examined(daemon: &Daemon, disk: &str) -> String {
    said(&daemon.any(&["disk", "examine", disk]))
}

#[test]
fn a_start_without_the_journal_disk_reports_the_consequences() {
    let mut daemon = Daemon::start();
    let [a, b, c, fast] = &files(&daemon, &["a", "b", "c", "fast"])[..] else { panic!("four files") };
    let mut client = create(&daemon, "raid5", &[a, b, c], &["--journal", fast]);
    write(&mut client, 0..40, 1);
    drop(client);
    // After a clean stop the journal disk is not needed.
    daemon.stop();
    hide(&daemon, fast);
    daemon.start_again();
    assert_eq!(health(&daemon), "whole");
    journal_is_on(&daemon, None);
    assert_eq!(journal(&daemon)["lost_disk"].as_str(), Some(&**fast));
    assert!(daemon.events().contains("journal_disk_lost"), "{}", daemon.events());
    assert!(status(&daemon).1.contains("braid array journal data DISK"), "{}", status(&daemon).1);
    check(&mut self::client(&daemon), 0..40, 1);
    // The journal disk returns as an old copy: the daemon does not use it as the journal.
    write(&mut self::client(&daemon), 40..60, 1);
    unhide(&daemon, fast);
    daemon.restart(true);
    journal_is_on(&daemon, None);
    check(&mut self::client(&daemon), 0..60, 1);
    daemon.refused(4, &["array", "journal", "data", fast]);
    daemon.braid(&["array", "journal", "data", fast, "--force"]);
    journal_is_on(&daemon, Some(fast));

    // A crash, and both the journal disk and a member are missing: which parity matches its data is unknown.
    let mut client = self::client(&daemon);
    write(&mut client, 60..80, 1);
    client.flush().expect("it flushes");
    // Partial stripe writes, which are not known to be in place.
    for block in 100..140 {
        client.write(block * BLOCK, &noise(4096, block)).expect("it writes");
    }
    drop(client);
    daemon.kill();
    hide(&daemon, fast);
    hide(&daemon, b);
    daemon.start_again();
    let shown = show(&daemon);
    assert_eq!(shown["state"], "incomplete", "{shown}");
    let attention = shown["attention"].to_string();
    assert!(attention.contains("the disk of its journal") && attention.contains(fast.as_str()), "{attention}");
    assert!(attention.contains("member 1") && attention.contains(b.as_str()), "{attention}");
    let refused = daemon.refused(1, &["array", "assemble", "data"]);
    assert!(refused.contains("--force") && refused.contains("may be wrong"), "{refused}");
    daemon.refused(1, &["array", "assemble", "data", "--degraded"]);

    // Either disk is enough: the member completes the data, and the journal disk completes the parity.
    unhide(&daemon, fast);
    daemon.any(&["array", "assemble", "data"]);
    wait_for_health(&daemon, "degraded");
    journal_is_on(&daemon, Some(fast));
    let mut client = self::client(&daemon);
    check(&mut client, 0..80, 1);
    for block in 100..140 {
        assert!(client.read(block * BLOCK, 4096).expect("it reads") == noise(4096, block), "block {block}");
    }
    unhide(&daemon, b);
    whole_again(&daemon, b);

    // With both missing for good, the array starts only by force: all flushed data are there.
    write(&mut client, 80..90, 1);
    client.flush().expect("it flushes");
    client.write(150 * BLOCK, &noise(4096, 150)).expect("it writes");
    drop(client);
    daemon.kill();
    hide(&daemon, fast);
    hide(&daemon, b);
    daemon.start_again();
    assert_eq!(show(&daemon)["state"], "incomplete", "{}", show(&daemon));
    daemon.braid(&["array", "assemble", "data", "--force"]);
    assert_eq!((health(&daemon), out(&daemon)), ("degraded".to_owned(), vec![1]));
    journal_is_on(&daemon, None);
    assert_eq!(journal(&daemon)["lost_disk"].as_str(), Some(&**fast));
    check(&mut self::client(&daemon), 0..90, 1);
    unhide(&daemon, b);
    whole_again(&daemon, b);
    daemon.braid(&["array", "journal", "data", "--members"]);
    // After a forced start all parity is recomputed, without a command.
    wait_for("the status", || (status(&daemon).0 == Some(0)).then_some(()));
    check(&mut self::client(&daemon), 0..90, 1);
}
