//! A disk replaces a member, which serves until the replacement is complete.

use crate::mirrors::*;
use crate::support::*;

pub fn wait_for_the_disk(daemon: &Daemon, role: usize, path: &str) {
    wait_for("the disk to take the member's place", || {
        let member = &show(daemon)["members"][role];
        (member["disk"].as_str() == Some(path) && member["state"].as_str() == Some("in_sync")).then_some(())
    });
}

fn replacement(daemon: &Daemon) -> serde_json::Value {
    let listed = daemon.json(&["job", "list"]);
    let job = listed["jobs"].as_array().and_then(|jobs| jobs.iter().find(|job| job["kind"] == "replace"));
    job.unwrap_or_else(|| panic!("no member is being replaced: {listed}")).clone()
}

#[test]
fn a_member_serves_until_its_replacement_holds_all_data() {
    let mut daemon = Daemon::start();
    let [a, b, c] = &files(&daemon, &["a", "b", "c"])[..] else { panic!("three files") };
    let mut client = create(&daemon, "raid1", &[a, b], &[]);
    write(&mut client, 0..300, 1);
    // Slow enough that the restart comes in the middle.
    let slow = format!("throttled({c},bw=8M)");
    daemon.braid(&["array", "replace", "data", a, &slow]);
    let job = replacement(&daemon);
    let name = job["name"].as_str().expect("a name");
    daemon.braid(&["job", "pause", name]);
    write(&mut client, 300..330, 1);
    let shown = show(&daemon);
    let replacing = &shown["members"][2];
    assert_eq!((&replacing["state"], &replacing["replaces"]), (&"rebuilding".into(), &0.into()), "{shown}");
    assert_eq!((&replacing["job"], health(&daemon)), (&name.into(), "whole".to_owned()), "the old member serves");
    // The job resumes at its position, and is still paused.
    client.flush().expect("it flushes");
    daemon.kill();
    daemon.start_again();
    client = self::client(&daemon);
    check(&mut client, 0..330, 1);
    let job = replacement(&daemon);
    assert_eq!(job["paused"], true, "{job}");
    daemon.braid(&["job", "resume", job["name"].as_str().expect("a name")]);
    write(&mut client, 330..360, 1);
    wait_for_the_disk(&daemon, 0, &slow);
    assert_eq!(show(&daemon)["members"].as_array().map(Vec::len), Some(2), "{}", show(&daemon));
    assert_eq!(health(&daemon), "whole");
    let events = daemon.events();
    assert!(
        events.contains("member_replaced")
            && events.contains(&format!("it is {slow} now"))
            && !events.contains("member_dropped"),
        "{events}"
    );
    // The replaced disk is free, and may be used otherwise.
    let examined = daemon.any(&["disk", "examine", a]);
    assert!(!said(&examined).contains("data"), "{}", said(&examined));
    daemon.braid(&["array", "create", "other", "--level", "concat", a]);
    // The new disk alone holds all data.
    client.flush().expect("it flushes");
    daemon.braid(&["array", "fail", "data", "1"]);
    check(&mut client, 0..360, 1);
}

#[test]
fn a_spare_replaces_a_member_and_a_failing_replacement_is_given_up() {
    let daemon = Daemon::start();
    let [a, b, c, d] = &files(&daemon, &["a", "b", "c", "d"])[..] else { panic!("four files") };
    let mut client = create(&daemon, "raid10", &[a, b], &["--spare", c]);
    write(&mut client, 0..200, 1);
    daemon.braid(&["array", "replace", "data", "1"]);
    wait_for_the_disk(&daemon, 1, c);
    check(&mut client, 0..200, 1);
    let none = daemon.any(&["array", "replace", "data", "1"]);
    assert_eq!(none.status.code(), Some(2), "{}", said(&none));
    assert!(said(&none).contains("no spare"), "{}", said(&none));

    // The new disk fails: the old member has served all the time.
    let faulty = format!("faulty({d},gone-after=60)");
    daemon.any(&["array", "replace", "data", "0", &faulty]);
    write(&mut client, 200..260, 1);
    wait_for("the job to have ended", || {
        let listed = daemon.json(&["job", "list"]);
        let over = |job: &serde_json::Value| job["state"] != "running";
        listed["jobs"].as_array().is_some_and(|jobs| jobs.iter().all(over)).then_some(())
    });
    wait_for_health(&daemon, "whole");
    assert_eq!(show(&daemon)["members"][0]["disk"].as_str(), Some(a.as_str()), "{}", show(&daemon));
    check(&mut client, 0..260, 1);
}

#[test]
fn a_member_that_fails_while_it_is_replaced_leaves_its_slot_at_once() {
    let daemon = Daemon::start();
    let [a, b, c] = &files(&daemon, &["a", "b", "c"])[..] else { panic!("three files") };
    let mut client = create(&daemon, "raid1", &[a, b], &[]);
    write(&mut client, 0..200, 1);
    let slow = format!("throttled({c},bw=20M)");
    daemon.braid(&["array", "replace", "data", "0", &slow]);
    daemon.braid(&["array", "fail", "data", a]);
    write(&mut client, 200..230, 1);
    wait_for_the_disk(&daemon, 0, &slow);
    wait_for_health(&daemon, "whole");
    client.flush().expect("it flushes");
    daemon.braid(&["array", "fail", "data", "1"]);
    check(&mut client, 0..230, 1);
}

#[test]
fn impossible_replacements_are_refused_with_a_remedy() {
    let daemon = Daemon::start();
    let [a, b] = &files(&daemon, &["a", "b"])[..] else { panic!("two files") };
    let small = daemon.folder.sparse("small", 20 * MIB);
    create(&daemon, "raid1", &[a, b], &[]);
    for (arguments, words) in [
        (vec!["array", "replace", "data", "7", &small], "no member 7"),
        (vec!["array", "replace", "data", "0"], "braid array replace data 0 DISK"),
        (vec!["array", "replace", "data", "0", &small], "needs"),
        (vec!["array", "replace", "data", "0", b], ""),
    ] {
        let out = daemon.any(&arguments);
        assert!(!out.status.success() && said(&out).contains(words), "{arguments:?}: {}", said(&out));
    }
    daemon.braid(&["array", "fail", "data", "0"]);
    let out = daemon.any(&["array", "replace", "data", "0", &small]);
    assert!(!out.status.success() && said(&out).contains("braid array add data DISK"), "{}", said(&out));
    assert_eq!(health(&daemon), "degraded");
}
