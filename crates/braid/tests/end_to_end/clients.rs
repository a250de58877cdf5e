//! Ordinary clients use an export: libnbd's tools, QEMU's, fio.

use crate::support::*;

/// Creates an array of three disks of different sizes, deliberately aligned neither to each other nor to the chunk.
fn braided(daemon: &Daemon, level: &str) -> (String, u64) {
    let sizes = [40 * MIB, 72 * MIB + 12 * KIB, 64 * MIB];
    let disks: Vec<String> = (0..3).map(|i| daemon.folder.sparse(&format!("disk{i}"), sizes[i])).collect();
    let disks: Vec<&str> = disks.iter().map(String::as_str).collect();
    let uri = daemon.array("data", level, &disks);
    let size = daemon.json(&["array", "show", "data"])["size_bytes"].as_u64().expect("a size");
    // The array has all of the capacity except the labels' own space.
    let raw: u64 = sizes.iter().sum();
    assert!(size > raw - 3 * 4 * MIB && size < raw, "{size} of {raw} bytes");
    (uri, size)
}

#[test]
fn nbdinfo_reports_the_array() {
    let daemon = Daemon::start();
    let (uri, size) = braided(&daemon, "raid0");
    let info: serde_json::Value =
        serde_json::from_str(&run("nbdinfo", &["--json", &uri])).expect("nbdinfo prints JSON");
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["structured"], true);
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], size);
    assert_eq!(export["is_read_only"], false);
    for ability in ["can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn", "can_cache", "can_df"] {
        assert_eq!(export[ability], true, "{ability}: {export}");
    }
    assert!(export["contexts"].as_array().expect("a list").iter().any(|c| c == "base:allocation"), "{export}");
    assert_eq!(run("nbdinfo", &["--size", &uri]).trim(), size.to_string());
    // Without `--map`, nbdinfo sends no BLOCK_STATUS.
    let map: serde_json::Value = serde_json::from_str(&run("nbdinfo", &["--map", "--json", &uri])).expect("JSON");
    let covered: u64 = map.as_array().expect("a list").iter().map(|e| e["length"].as_u64().expect("bytes")).sum();
    assert_eq!(covered, size);
}

#[test]
fn several_exports_on_one_socket_are_listed_and_distinguished() {
    let daemon = Daemon::start();
    let socket = format!("unix:{}", daemon.folder.join("all.nbd"));
    for (name, size) in [("small", 8 * MIB), ("large", 16 * MIB)] {
        let disk = daemon.folder.sparse(name, size);
        daemon.braid(&["array", "create", name, "--level", "concat", &disk]);
        daemon.braid(&["export", "add", name, "--nbd", &socket]);
    }
    let list = run("nbdinfo", &["--list", "--json", &format!("nbd+unix:///?socket={}", daemon.folder.join("all.nbd"))]);
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    let mut names: Vec<_> = list["exports"].as_array().expect("a list").iter().map(|e| &e["export-name"]).collect();
    names.sort_by_key(|name| name.to_string());
    assert_eq!(names, ["large", "small"]);
    for name in ["small", "large"] {
        let uri = format!("nbd+unix:///{name}?socket={}", daemon.folder.join("all.nbd"));
        let size = daemon.json(&["array", "show", name])["size_bytes"].clone();
        assert_eq!(run("nbdinfo", &["--size", &uri]).trim(), size.to_string());
    }
    let absent =
        run_any("nbdinfo", &["--size", &format!("nbd+unix:///absent?socket={}", daemon.folder.join("all.nbd"))]);
    assert!(!absent.status.success());
}

#[test]
fn nbdcopy_copies_in_and_out() {
    for level in ["raid0", "concat"] {
        let daemon = Daemon::start();
        let (uri, size) = braided(&daemon, level);
        let source = daemon.folder.noise("source", size, 1);
        // Several connections with many requests each: replies may arrive in any order.
        run("nbdcopy", &["--connections=4", "--requests=64", "--flush", &source, &uri]);
        let back = daemon.folder.join("back");
        run("nbdcopy", &["--connections=4", "--requests=64", &uri, &back]);
        assert_eq!(checksum(&back), checksum(&source), "{level}");
    }
}

#[test]
fn nbdcopy_over_tcp() {
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 24 * MIB);
    daemon.braid(&["array", "create", "data", "--level", "concat", &disk]);
    let port = daemon.export_tcp("data", "data");
    let uri = format!("nbd://127.0.0.1:{port}/data");
    let size = run("nbdinfo", &["--size", &uri]).trim().parse().expect("a size");
    let source = daemon.folder.noise("source", size, 2);
    run("nbdcopy", &[&source, &uri]);
    let back = daemon.folder.join("back");
    run("nbdcopy", &[&uri, &back]);
    assert_eq!(checksum(&back), checksum(&source));
}

#[test]
fn qemu_img_converts_and_compares() {
    let daemon = Daemon::start();
    let (uri, size) = braided(&daemon, "raid0");
    let source = daemon.folder.noise("source", 32 * MIB, 3);
    // A qcow2 image of the whole size with data only at its beginning: zeros and holes are written as such.
    let image = daemon.folder.join("image.qcow2");
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &source, &image]);
    run("qemu-img", &["resize", &image, &size.to_string()]);
    run("qemu-img", &["convert", "-n", "-f", "qcow2", "-O", "raw", &image, &uri]);
    run("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", &image, &uri]);
    let back = daemon.folder.join("back.qcow2");
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, &back]);
    run("qemu-img", &["compare", "-f", "qcow2", "-F", "qcow2", &image, &back]);
    // The comparison detects a difference.
    run("qemu-io", &["-f", "raw", "-c", "write -P 9 1M 4k", "-c", "flush", &uri]);
    assert_eq!(run_any("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", &image, &uri]).status.code(), Some(1));
}

#[test]
fn qemu_io_writes_zeroes_discards_and_reads_back() {
    let daemon = Daemon::start();
    let (uri, size) = braided(&daemon, "raid0");
    let last = size - 64 * KIB;
    // qemu-io checks the pattern of each read (-P) and reports mismatches on standard output.
    let script = [
        "write -P 0x11 0 1M".to_owned(),
        "write -f -P 0x22 60k 8k".to_owned(),
        "write -z 128k 64k".to_owned(),
        "write -z -u 256k 64k".to_owned(),
        "discard 512k 64k".to_owned(),
        format!("write -P 0x33 {last} 64k"),
        "flush".to_owned(),
        "read -P 0x11 0 60k".to_owned(),
        "read -P 0x22 60k 8k".to_owned(),
        "read -P 0x11 68k 60k".to_owned(),
        "read -P 0 128k 64k".to_owned(),
        "read -P 0x11 192k 64k".to_owned(),
        "read -P 0 256k 64k".to_owned(),
        "read -P 0x11 320k 192k".to_owned(),
        "read -P 0x11 576k 448k".to_owned(),
        format!("read -P 0x33 {last} 64k"),
        // A length that is no multiple of 4 KiB, across a chunk's edge: QEMU sends it unchanged where the export's
        // block size allows.
        "write -P 0x44 130561 1023".to_owned(),
        "read -P 0x44 130561 1023".to_owned(),
        "read -P 0x11 129536 1025".to_owned(),
    ];
    let mut arguments = vec!["-f", "raw", "-t", "none"];
    for line in &script {
        arguments.extend(["-c", line]);
    }
    arguments.push(&uri);
    let out = run("qemu-io", &arguments);
    assert!(!out.contains("failed") && !out.contains("error"), "{out}");
    // The check detects a wrong pattern.
    let out = run_any("qemu-io", &["-f", "raw", "-c", "read -P 0x55 0 4k", &uri]);
    assert!(said(&out).contains("Pattern verification failed"), "{}", said(&out));
}

#[test]
fn fio_verifies_what_several_connections_wrote() {
    let daemon = Daemon::start();
    let (uri, _) = braided(&daemon, "raid0");
    // Four connections, each on its own part of the device with mixed block sizes; afterwards everything is read back.
    let uri = format!("--uri={uri}");
    let common =
        ["--ioengine=nbd", &uri, "--rw=randwrite", "--bssplit=4k/60:12k/20:128k/20", "--iodepth=32", "--direct=1"];
    let mut arguments = vec!["--name=writers", "--numjobs=4", "--size=24M", "--offset_increment=32M", "--randseed=7"];
    arguments.extend(common);
    arguments.extend([
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--do_verify=1",
        "--verify_backlog=256",
        "--group_reporting",
    ]);
    let out = run("fio", &arguments);
    assert!(out.contains("err= 0"), "{out}");
}

#[test]
fn a_read_only_export_refuses_writes() {
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 16 * MIB);
    daemon.braid(&["array", "create", "data", "--level", "concat", &disk]);
    daemon.braid(&["export", "add", "data", "--read-only", "--nbd", &format!("unix:{}", daemon.nbd_socket("data"))]);
    let uri = daemon.uri("data");
    let info: serde_json::Value = serde_json::from_str(&run("nbdinfo", &["--json", &uri])).expect("JSON");
    assert_eq!(info["exports"][0]["is_read_only"], true);
    let source = daemon.folder.noise("source", MIB, 4);
    assert!(!run_any("nbdcopy", &[&source, &uri]).status.success());
    run("qemu-io", &["-r", "-f", "raw", "-c", "read -P 0 0 1M", &uri]);
}
