//! Rot on arrays with parity: found by a check, and at raid6 the member named that has it.

use serde_json::json;

use crate::checks::{found, gone_over, rot};
use crate::mirrors::*;
use crate::support::*;

#[test]
fn raid6_names_the_member_that_rots_and_repairs_it_from_the_others() {
    let daemon = Daemon::start();
    let disks = files(&daemon, &["a", "b", "c", "d"]);
    let names: Vec<&str> = disks.iter().map(String::as_str).collect();
    let mut client = create(&daemon, "raid6", &names, &[]);
    write(&mut client, 0..100, 1);
    client.flush().expect("it flushes");
    let (status, job) = gone_over(&daemon, "check");
    assert_eq!((status, found(&job, "differing_blocks")), (Some(0), 0), "{job}");
    assert!(found(&job, "compared_blocks") >= 100 * BLOCK / 4096, "{job}");

    // Row 0 has Q on member 0, data on 1 and 2, P on 3; row 1 data on 0 and 1.
    rot(&daemon, 1, &disks[1], 4096, 100);
    rot(&daemon, 3, &disks[3], 2 * 4096, 4096);
    rot(&daemon, 0, &disks[0], 3 * 4096 + 7, 1);
    rot(&daemon, 1, &disks[1], BLOCK, 8192);
    let (status, job) = gone_over(&daemon, "check");
    assert_eq!((status, found(&job, "differing_blocks"), found(&job, "mended_blocks")), (Some(7), 5, 0), "{job}");
    let wrong = |member: u16, blocks: u64| json!({"member": member, "blocks": blocks});
    assert_eq!(job["findings"]["wrong_members"], json!([wrong(0, 1), wrong(1, 3), wrong(3, 1)]), "{job}");
    assert_eq!(
        job["findings"]["places_bytes"],
        json!([4096, 2 * 4096, 3 * 4096, 2 * BLOCK, 2 * BLOCK + 4096]),
        "{job}"
    );
    let status = daemon.any(&["status", "--check"]);
    assert!(
        status.status.code() == Some(5) && said(&status).contains("member 1 had 3 blocks wrong"),
        "{}",
        said(&status)
    );

    let (status, job) = gone_over(&daemon, "repair");
    assert_eq!((status, found(&job, "differing_blocks"), found(&job, "mended_blocks")), (Some(0), 5, 5), "{job}");
    assert!(daemon.events().contains("damage_mended"), "{}", daemon.events());
    check(&mut client, 0..100, 1);
    assert_eq!(gone_over(&daemon, "check").0, Some(0));
    assert_eq!(daemon.any(&["status", "--check"]).status.code(), Some(0));
    // What was computed is right in every cell.
    for pair in [["1", "3"], ["0", "2"]] {
        pair.iter().for_each(|role| drop(daemon.braid(&["array", "fail", "data", role])));
        check(&mut client, 0..100, 1);
        pair.iter().for_each(|role| {
            crate::mirror_crashes::bring_back(&daemon, &disks[role.parse::<usize>().expect("a number")]);
        });
        wait_for_health(&daemon, "whole");
    }
}

#[test]
fn raid5_finds_rot_and_makes_the_parity_agree() {
    let daemon = Daemon::start();
    let [a, b, c] = &files(&daemon, &["a", "b", "c"])[..] else { panic!("three files") };
    let mut client = create(&daemon, "raid5", &[a, b, c], &[]);
    write(&mut client, 0..60, 1);
    client.flush().expect("it flushes");
    // The parity of row 0.
    rot(&daemon, 2, c, 0, 3 * 4096);
    let (status, job) = gone_over(&daemon, "check");
    assert_eq!((status, found(&job, "differing_blocks")), (Some(7), 3), "{job}");
    assert_eq!(job["findings"]["wrong_members"], json!([]), "one parity cannot tell: {job}");
    let status = daemon.any(&["status", "--check"]);
    assert!(said(&status).contains("one parity cannot tell"), "{}", said(&status));
    let (status, job) = gone_over(&daemon, "repair");
    assert_eq!((status, found(&job, "mended_blocks")), (Some(0), 3), "{job}");
    assert_eq!(gone_over(&daemon, "check").0, Some(0));
    daemon.braid(&["array", "fail", "data", "0"]);
    check(&mut client, 0..60, 1);
    crate::mirror_crashes::bring_back(&daemon, a);
    wait_for_health(&daemon, "whole");

    // What cannot be read is computed and written again, by a user's read or a check.
    daemon.braid(&["array", "fail", "data", "1"]);
    crate::mirror_crashes::bring_back(&daemon, &format!("faulty({b},read-error@1100K-1104K*3)"));
    wait_for_health(&daemon, "whole");
    let (status, job) = gone_over(&daemon, "check");
    assert_eq!((status, found(&job, "unreadable_blocks")), (Some(0), 0), "{job}");
    assert!(daemon.events().contains("read_repaired"), "{}", daemon.events());
    check(&mut client, 0..60, 1);
}
