//! `braid bench`: what it counts adds up, what it is asked for it keeps to, and a lie of a disk is found out. Nothing is said
//! here about how fast anything is.

use serde_json::Value;

use crate::support::*;

/// Runs `braid bench ARGUMENTS` where no daemon is.
fn bench(arguments: &[&str]) -> std::process::Output {
    let folder = Folder::new();
    let mut command = command(BRAID);
    command.arg("bench").args(arguments);
    places(&mut command, &folder);
    command.output().expect("braid can be started")
}

/// The document of a run that has to succeed.
#[track_caller]
fn document(arguments: &[&str]) -> Value {
    let out = bench(&[arguments, &["--json"]].concat());
    assert!(out.status.success(), "{arguments:?}: {}", said(&out));
    let document: Value = serde_json::from_slice(&out.stdout).expect("it is JSON");
    consistent(&document);
    document
}

/// What holds of every document.
#[track_caller]
fn consistent(document: &Value) {
    assert_eq!((document["format"].as_str(), document["version"].as_u64()), (Some("braid-bench"), Some(1)));
    let (targets, points) = (count(&document["targets"]), count(&document["points"]));
    assert_eq!(count(&document["results"]), targets * points, "{document}");
    assert_eq!(count(&document["comparisons"]), (targets - 1) * points, "{document}");
    for (at, result) in list(&document["results"]).iter().enumerate() {
        assert_eq!((&result["point"], &result["target"]), (&(at / targets).into(), &(at % targets).into()));
        let slices = list(&result["slices"]);
        assert_eq!(slices.len() as u64, number(&document["slices"]) as u64);
        let sum = |of: &str| slices.iter().map(|slice| number(&slice[of])).sum::<f64>();
        assert_eq!(sum("ios"), number(&result["ios"]));
        assert_eq!(sum("elapsed_ns"), number(&result["elapsed_ns"]));
        let (low, iops, high) = (number(&result["iops_low"]), number(&result["iops"]), number(&result["iops_high"]));
        assert!(low <= iops && iops <= high, "{low} {iops} {high}");
        let block = number(&document["points"][at / targets]["block_bytes"]);
        assert!((number(&result["bytes_per_second"]) - iops * block).abs() <= 1.0 + iops * block / 1e9);
        let sides = [&result["read_latency"], &result["write_latency"]];
        let counted: f64 = sides.iter().filter(|side| !side.is_null()).map(|side| number(&side["count"])).sum();
        assert_eq!(counted, number(&result["latency"]["count"]));
        // What was in flight when the time was over was answered, too, and is no part of the rate.
        assert!(counted >= number(&result["ios"]) && counted > 0.0, "{result}");
        for latency in sides.into_iter().chain([&result["latency"]]).filter(|side| !side.is_null()) {
            let figures = ["min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"].map(|of| number(&latency[of]));
            assert!(figures.windows(2).all(|w| w[0] <= w[1]), "{latency}");
            let curve = list(&latency["percentiles"]);
            let rises = |of: &str| curve.windows(2).all(|w| number(&w[0][of]) <= number(&w[1][of]));
            assert!(rises("percentile") && rises("latency_ns"), "{latency}");
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_else(|| panic!("a list: {value}"))
}

fn count(value: &Value) -> usize {
    list(value).len()
}

#[track_caller]
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number: {value}"))
}

#[test]
fn it_measures_and_verifies_and_does_not_destroy() {
    let folder = Folder::new();
    let files: Vec<String> = (0..3).map(|i| folder.sparse(&format!("disk{i}"), 16 * MIB)).collect();
    let mut arguments = vec!["--level", "raid0", "--op", "write", "--block", "12K", "--depth", "16"];
    arguments.extend(["--count", "2000", "--verify"]);
    arguments.extend(files.iter().map(String::as_str));
    let found = document(&arguments);
    let result = &found["results"][0];
    assert_eq!((&result["ios"], &result["errors"]), (&2000.into(), &0.into()), "{result}");
    assert!(number(&result["verified_bytes"]) > 0.0, "{result}");
    // It does not write over somebody's data.
    let foreign = folder.sparse("foreign", 64 * MIB);
    run("mkfs.ext4", &["-q", "-F", &foreign]);
    let sum = checksum(&foreign);
    for arguments in [&["--op", "write", "--count", "10", &foreign][..], &["--verify", "--count", "10", &foreign]] {
        let out = bench(arguments);
        assert_eq!(out.status.code(), Some(4), "{}", said(&out));
        assert!(said(&out).contains("ext4"), "{}", said(&out));
    }
    assert_eq!(checksum(&foreign), sum);
    document(&["--count", "10", &foreign]);
}

#[test]
fn a_disk_that_lies_is_found_out() {
    let lies = [
        ("faulty(mem:8M,corrupt:0.01)", "write"),
        ("faulty(mem:8M,corrupt:0.01)", "read"),
        // Most of a torn write is lost: with what stood there before, only the count of writes tells.
        ("faulty(mem:8M,torn:0.01)", "mixed"),
        ("raid0(mem:8M,faulty(mem:8M,torn:0.02),chunk=4K)", "write"),
    ];
    for (disk, op) in lies {
        let out = bench(&["--op", op, "--count", "20000", "--depth", "16", "--jobs", "2", "--verify", "--json", disk]);
        assert_eq!(out.status.code(), Some(7), "{disk} {op}: {}", said(&out));
        let found: Value = serde_json::from_slice(&out.stdout).expect("it is JSON");
        let result = &found["results"][0];
        assert!(number(&result["mismatch_count"]) >= 1.0 && count(&result["mismatches"]) >= 1, "{disk} {op}: {result}");
    }
    // The honest ones pass under the same load, over all kinds of order and at once.
    for order in ["random", "sequential", "zipf"] {
        let load =
            ["--op", "mixed", "--count", "20000", "--depth", "16", "--jobs", "2", "--verify", "--pattern", order];
        document(&[&load[..], &["mem:8M", "raid0(mem:8M,mem:9M,chunk=4K)"][..1]].concat());
        document(&[&load[..], &["raid0(mem:8M,mem:9M,chunk=4K)"]].concat());
    }
    // Errors are counted, and are no success.
    let out = bench(&["--count", "1000", "--json", "faulty(mem:8M,read-error:0.1)"]);
    assert_eq!(out.status.code(), Some(1), "{}", said(&out));
    let found: Value = serde_json::from_slice(&out.stdout).expect("it is JSON");
    let errors = number(&found["results"][0]["errors"]);
    assert!(errors > 0.0 && errors < 1000.0, "{found}");
}

#[test]
fn sweeps_and_comparisons_take_turns_and_add_up() {
    let found = document(&[
        "null:1G",
        "raid0(null:1G,null:1G)",
        "jbod(null:1G,null:1G)",
        "--jobs",
        "2",
        "--depth",
        "1..4",
        "--block-size",
        "4K,64K",
        "--time",
        "40ms",
        "--slices",
        "2",
        "--label",
        "one",
    ]);
    assert_eq!((count(&found["targets"]), count(&found["points"])), (3, 6));
    assert_eq!(found["targets"][0]["label"], "one");
    assert_eq!(found["targets"][2]["size_bytes"], 2u64 << 30);
    let points: Vec<(u64, u64)> = list(&found["points"])
        .iter()
        .map(|point| (number(&point["block_bytes"]) as u64, number(&point["depth"]) as u64))
        .collect();
    assert_eq!(points, [(4096, 1), (4096, 2), (4096, 4), (65536, 1), (65536, 2), (65536, 4)]);
    // Each comparison is of its own two results.
    for one in list(&found["comparisons"]) {
        let of = |target: &Value| {
            let at = number(&one["point"]) as usize * 3 + number(target) as usize;
            number(&found["results"][at]["iops"])
        };
        let ratio = number(&one["iops"]["value"]);
        assert!((ratio - of(&one["target"]) / of(&one["against"])).abs() < 1e-6 * ratio, "{one}");
        assert!(number(&one["iops"]["low"]) <= ratio && ratio <= number(&one["iops"]["high"]), "{one}");
    }
    let text = bench(&["null:1G", "null:2G", "--depth", "1,2", "--time", "20ms"]);
    for word in ["TARGET", "RATIO", "null:1G", "null:2G", "P99.9"] {
        assert!(said(&text).contains(word), "{word}: {}", said(&text));
    }
}

#[test]
fn a_rate_is_not_exceeded_and_a_disk_that_is_too_slow_is_named() {
    let found = document(&["mem:8M", "--rate", "2000", "--time", "500ms", "--slices", "1", "--jobs", "2"]);
    let result = &found["results"][0];
    // By the schedule itself, not by a clock: half a second holds a thousand moments.
    assert!(number(&result["latency"]["count"]) <= 1001.0, "{result}");
    assert!(number(&result["elapsed_ns"]) >= 5e8, "{result}");
    // One I/O of 20 ms at a time cannot do 1,000 a second: what was meant to begin and did not is counted, and what did begin
    // late has its wait in its latency.
    let slow = "throttled(mem:8M,latency=20ms)";
    let found = document(&[slow, "--rate", "1000", "--depth", "1", "--time", "400ms", "--slices", "1"]);
    let result = &found["results"][0];
    let begun = number(&result["latency"]["count"]);
    assert!(begun <= 21.0, "{result}");
    assert_eq!(number(&result["behind_ios"]) + begun, 400.0, "{result}");
    assert!(number(&result["latency"]["max_ns"]) > 20e6 * begun * 0.9, "{result}");
}

#[test]
fn exports_are_measured_by_uri_by_name_and_by_the_name_of_their_array() {
    let daemon = Daemon::start();
    let uri = daemon.array("fast", "raid0", &["mem:16M", "mem:16M"]);
    daemon.braid(&["array", "create", "hidden", "--level", "concat", "mem:16M"]);
    daemon.braid(&[
        "export",
        "add",
        "fast",
        "--nbd",
        &format!("unix:{}", daemon.folder.join("ro")),
        "--name",
        "fast-ro",
        "--read-only",
    ]);
    let load = ["--count", "3000", "--depth", "8", "--jobs", "3"];
    let measured = |words: &[&str]| {
        let found = daemon.json(&[&["bench"], words, &load[..]].concat());
        consistent(&found);
        assert_eq!(found["results"][0]["ios"], 3000, "{found}");
        found
    };
    measured(&[&uri]);
    let found = measured(&["fast", "--op", "mixed", "--verify"]);
    assert_eq!(
        (found["targets"][0]["uri"].as_str(), found["targets"][0]["kind"].as_str()),
        (Some(uri.as_str()), Some("nbd"))
    );
    assert!(number(&found["results"][0]["verified_bytes"]) >= 32.0 * MIB as f64, "{found}");
    let found = measured(&["fast-ro", "null:1G", "--pattern", "zipf", "--theta", "1.2"]);
    assert_eq!(found["targets"][1]["kind"], "local");
    let found = daemon.json(&["bench", "fast", "--rate", "500", "--time", "200ms", "--slices", "1"]);
    assert!(number(&found["results"][0]["latency"]["count"]) <= 101.0, "{found}");

    assert!(daemon.refused(3, &["bench", "nothing"]).contains("array list"));
    assert!(daemon.refused(3, &["bench", "hidden"]).contains("braid export add hidden"));
    assert!(daemon.refused(1, &["bench", "fast-ro", "--op", "write"]).contains("read-only"));
    assert!(daemon.refused(2, &["bench", "fast", "--depth", "2000"]).contains("--jobs"));
    // What a disk is refused for, an export is refused for.
    let foreign = daemon.folder.sparse("foreign", 24 * MIB);
    run("mkfs.ext4", &["-q", "-F", &foreign]);
    run("nbdcopy", &[&foreign, &uri]);
    assert!(daemon.refused(4, &["bench", "fast", "--op", "write", "--count", "10"]).contains("ext4"));
    daemon.braid(&["bench", "fast", "--op", "write", "--count", "10", "--force"]);
}

#[test]
fn an_export_is_measured_over_tls_by_those_who_know_its_authority() {
    let folder = Folder::new();
    let new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
    let [ca, ca_key, certificate, key] =
        ["ca-cert.pem", "ca-key.pem", "cert.pem", "key.pem"].map(|name| folder.join(name));
    run("openssl", &[&new[..], &["-subj", "/CN=authority", "-keyout", &ca_key, "-out", &ca]].concat());
    let server = ["-subj", "/CN=localhost", "-keyout", &key, "-out", &certificate, "-CA", &ca, "-CAkey", &ca_key];
    let is = ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", "subjectAltName=DNS:localhost"];
    run("openssl", &[&new[..], &server, &is].concat());
    let certificates = folder.path().to_str().expect("temporary folders have UTF-8 names").to_owned();
    let daemon = Daemon::start_in(folder, &["--nbd-cert", &certificate, "--nbd-key", &key]);
    daemon.braid(&["array", "create", "fast", "--level", "concat", "mem:16M"]);
    let address = format!("unix:{}", daemon.nbd_socket("fast"));
    daemon.braid(&["export", "add", "fast", "--nbd", &address, "--tls", "required"]);
    let uri = format!("nbds+unix:///fast?socket={}", daemon.nbd_socket("fast"));
    let load = ["--op", "mixed", "--verify", "--count", "2000", "--jobs", "2", "--block-size", "64K"];
    let found = daemon.json(&[&["bench", &format!("{uri}&tls-certificates={certificates}")][..], &load].concat());
    consistent(&found);
    assert!(number(&found["results"][0]["verified_bytes"]) >= 16.0 * MIB as f64, "{found}");
    // By its name the URI is known, and whom to believe is not.
    for target in ["fast", &uri] {
        assert!(daemon.refused(1, &["bench", target, "--count", "1"]).contains("tls-certificates"), "{target}");
    }
    daemon.refused(3, &["bench", &daemon.uri("fast"), "--count", "1"]);
}

#[test]
fn wrong_targets_and_loads_are_named_with_a_remedy() {
    // (arguments, exit status, what the answer has to contain)
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&[], 2, &["no target", "null:1T"]),
        (&["nonsense"], 3, &["nonsense", "braid serve"]),
        (&["raid0(null:1T"], 2, &["not closed", "raid0("]),
        (&["raid0(null:1T,chunk=5000)"], 2, &["5000", "chunk"]),
        (&["jbod(null:1T,null:1T)"], 2, &["--jobs 2"]),
        (&["null:1T", "--depth", "4..1"], 2, &["4..1", "1..128"]),
        (&["null:1T", "--block-size", "5000"], 2, &["5000", "4K"]),
        (&["null:1T", "--theta", "1"], 2, &["--pattern zipf"]),
        (&["null:1T", "--pattern", "zipf", "--theta", "9"], 2, &["theta"]),
        (&["null:1T", "--full"], 2, &["--profile"]),
        (&["null:1T", "--from", "2T"], 2, &["--from", "beyond"]),
        (&["null:1T", "--block-size", "32M", "--depth", "64"], 2, &["1024 MiB", "--depth"]),
        (&["null:1T", "--jobs", "64", "--shards", "1", "--depth", "2048"], 2, &["in flight", "--shards"]),
        (&["null:1M", "--pattern", "sequential", "--jobs", "8", "--block-size", "512K"], 2, &["8 jobs", "--span"]),
        (&["mem:1M", "concat(mem:1M,mem:1M)", "--verify"], 2, &["mem:1M", "one target at a time"]),
        (&["--profile", "jbod", "null:1G"], 2, &["4 disks"]),
        (&["--profile", "striping", "--depth", "3"], 2, &["--depth"]),
        (&["null:1T", "--html", "/nowhere/x.html"], 2, &["/nowhere/x.html"]),
        (&["nbd+unix:///x?socket=/nowhere/socket"], 6, &["/nowhere/socket"]),
        (&["nbd+unix:///x"], 2, &["nbd+unix:///x"]),
    ];
    for (arguments, status, words) in cases {
        let out = bench(arguments);
        let text = said(&out);
        assert_eq!(out.status.code(), Some(*status), "{arguments:?}: {text}");
        for word in *words {
            assert!(text.contains(word), "{arguments:?} does not mention {word}: {text}");
        }
        assert!(!text.contains("panicked"), "{text}");
    }
}

#[test]
fn every_profile_runs_with_its_published_figures_beside() {
    for (profile, figures) in [("disk-aggregation", 36), ("jbod", 1), ("queue-depth", 12), ("striping", 4)] {
        let found = document(&["--profile", profile, "--time", "6ms", "--slices", "1"]);
        let published = list(&found["results"]).iter().filter(|result| !result["published"].is_null()).count();
        assert_eq!(published, figures, "{profile}");
        assert_eq!(found["profile"]["name"], profile);
    }
    let out = bench(&["--profile", "jbod", "--time", "50ms", "null:1G", "null:1G", "null:1G", "null:1G"]);
    assert!(said(&out).contains("PUBLISHED") && said(&out).contains("1.3 times"), "{}", said(&out));
}

#[test]
fn fio_understands_what_is_emitted() {
    let folder = Folder::new();
    let file = folder.sparse("a.img", 8 * MIB);
    let uri = "nbd+unix:///x?socket=/run/braid/none";
    let cases: &[&[&str]] = &[
        &["--profile", "disk-aggregation"],
        &["--profile", "jbod"],
        &["--profile", "queue-depth", "--full"],
        &["--profile", "striping"],
        &["--depth", "1..8", "--block-size", "4K,1M", "--op", "mixed", "--jobs", "2", &file, "null:1G", uri],
        &["--pattern", "zipf", "--theta", "1.2", "--rate", "1000", "--from", "4K", "--span", "1M", &file],
        &[
            "--pattern",
            "sequential",
            "--op",
            "write",
            "--verify",
            "--count",
            "100",
            "--jobs",
            "4",
            "--ramp",
            "1s",
            &file,
        ],
        &["--pattern", "sequential", "--op", "mixed", "--rate", "10", uri, "name-of-an-array"],
    ];
    for (number, arguments) in cases.iter().enumerate() {
        let out = bench(&[*arguments, &["--emit-fio"]].concat());
        assert!(out.status.success(), "{arguments:?}: {}", said(&out));
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let job = folder.join(&format!("{number}.fio"));
        std::fs::write(&job, &text).expect("a file can be written");
        let mut fio = command("fio");
        for target in 1..=6 {
            fio.env(format!("TARGET{target}_URI"), uri);
        }
        let parsed = fio.args(["--parse-only", &job]).current_dir(folder.path()).output().expect("fio is installed");
        assert!(parsed.status.success(), "{arguments:?}: {}\n{text}", said(&parsed));
        if arguments.contains(&uri) {
            assert!(text.contains(&format!("ioengine=nbd\nuri={uri}")), "{text}");
        }
    }
    // And it runs, on as many I/Os as were asked for.
    let out = bench(&["--count", "64", "--block-size", "4K", "--depth", "4", "--emit-fio", &file]);
    let job = folder.join("run.fio");
    std::fs::write(&job, &out.stdout).expect("a file can be written");
    let ran = run("fio", &["--output-format=json", &job]);
    let found: Value = serde_json::from_str(&ran).expect("fio prints JSON");
    assert_eq!(found["jobs"][0]["read"]["total_ios"], 64, "{ran}");
}

#[test]
fn a_terminal_gets_a_live_line_and_nobody_else_does() {
    let arguments = "bench null:1G --time 1500ms --slices 3";
    let folder = Folder::new();
    let log = folder.join("typescript");
    // `script` is a terminal.
    let out = run("script", &["-qec", &format!("{BRAID} {arguments}"), &log]);
    assert!(out.contains("[1/3") && out.contains("[3/3") && out.contains("IOPS"), "{out:?}");
    let out = bench(&["null:1G", "--time", "600ms", "--slices", "3"]);
    assert!(out.stderr.is_empty() && !String::from_utf8_lossy(&out.stdout).contains("[1/3"), "{}", said(&out));
}

/// Begins a long run, waits until it has written to `file`, and interrupts it; gives its document.
#[track_caller]
fn interrupted(folder: &Folder, file: &str, arguments: &[&str]) -> Value {
    use std::os::unix::fs::MetadataExt as _;
    let (page, answer) = (folder.join("page.html"), folder.join("answer.json"));
    let mut command = command(BRAID);
    command.args(["bench", "--op", "write", "--time", "60m", "--json", "--html", &page]).args(arguments);
    places(&mut command, folder);
    let blocks = || std::fs::metadata(file).expect("it is there").blocks();
    let before = blocks();
    // Its answer is apart from what it says beside it.
    let mut run = Running::start_apart(folder, "bench", &mut command, &answer);
    wait_for("something to be written", || {
        assert!(run.ended().is_none(), "{}", run.log());
        (blocks() > before + 256).then_some(())
    });
    run.interrupt();
    assert_eq!(run.wait().code(), Some(1), "{}", run.log());
    assert!(run.log().contains("interrupt once more to end at once"), "{}", run.log());
    let found: Value = serde_json::from_slice(&std::fs::read(&answer).expect("it was written")).expect("it is JSON");
    assert_eq!(found["interrupted"], true, "{found}");
    let drawn = std::fs::read_to_string(&page).expect("the page is there");
    assert!(drawn.contains("Interrupted: these results") && drawn.ends_with("</html>\n"), "{drawn}");
    found
}

#[test]
fn what_was_measured_before_an_interruption_is_told() {
    let folder = Folder::new();
    // Two points and two targets of which only the first of each is ever begun.
    let file = folder.sparse("disk", 16 * MIB);
    let sweep = ["--slices", "1", "--depth", "4,8", "--verify", &file, "null:1G"];
    let found = interrupted(&folder, &file, &sweep);
    assert_eq!((count(&found["targets"]), count(&found["points"]), count(&found["results"])), (2, 1, 1), "{found}");
    assert_eq!(count(&found["comparisons"]), 0, "{found}");
    let result = &found["results"][0];
    assert_eq!((&result["target"], &result["point"], count(&result["slices"])), (&0.into(), &0.into(), 1));
    assert!(number(&result["ios"]) > 0.0 && number(&result["elapsed_ns"]) < 3600e9, "{result}");
    assert!(number(&result["latency"]["count"]) >= number(&result["ios"]), "{result}");
    // By a schedule: what was not due yet is not behind.
    let file = folder.sparse("steady", 16 * MIB);
    let found = interrupted(&folder, &file, &["--slices", "1", "--rate", "500", &file]);
    let result = &found["results"][0];
    let due = number(&result["elapsed_ns"]) / 1e9 * 500.0;
    let counted = number(&result["behind_ios"]) + number(&result["latency"]["count"]);
    assert!((counted - due).abs() <= 2.0, "{counted} of {due}: {result}");
}

#[test]
fn an_export_is_measured_until_an_interruption() {
    let daemon = Daemon::start();
    let disk = daemon.folder.sparse("disk", 64 * MIB);
    let uri = daemon.array("fast", "concat", &[&disk]);
    let found = interrupted(&Folder::new(), &disk, &["--slices", "1", "--jobs", "2", &uri]);
    assert_eq!((count(&found["results"]), found["targets"][0]["kind"].as_str()), (1, Some("nbd")), "{found}");
    assert!(number(&found["results"][0]["ios"]) > 0.0, "{found}");
}

#[test]
fn a_second_interruption_ends_at_once() {
    let folder = Folder::new();
    // An interruption before the first I/O is out ends the run by itself, as nothing has to be waited for: then once more, later.
    let status = (1..=20).find_map(|attempt| {
        let page = folder.join(&format!("page{attempt}.html"));
        let mut command = command(BRAID);
        command.args(["bench", "--time", "60m", "--html", &page, "faulty(mem:8M,delay=30s)"]);
        places(&mut command, &folder);
        let mut run = Running::start(&folder, &format!("bench{attempt}"), &mut command);
        wait_for("the run to catch signals", || {
            assert!(run.ended().is_none(), "{}", run.log());
            std::path::Path::new(&page).exists().then_some(())
        });
        std::thread::sleep(std::time::Duration::from_millis(50 * attempt));
        run.interrupt();
        wait_for("the first one to be taken", || {
            run.log().contains("interrupt once more to end at once").then_some(())
        });
        if run.ended().is_none() {
            run.interrupt();
        }
        let code = run.wait().code();
        let too_early = code == Some(1) && run.log().contains("before anything was measured");
        assert!(code == Some(130) || too_early, "{code:?}: {}", run.log());
        code.filter(|&code| code == 130)
    });
    assert_eq!(status, Some(130));
}

#[test]
fn what_takes_one_turn_of_the_loop_takes_some_time() {
    // Three I/Os to nowhere are done before the loop reads its clock again; nothing does a thousand million of them a second.
    let found = document(&["--count", "3", "null:1G"]);
    let result = &found["results"][0];
    assert!(number(&result["elapsed_ns"]) > 100.0 && number(&result["iops"]) < 3e7, "{result}");
}

#[test]
fn over_nbd_lies_are_found_out_and_waits_are_counted_as_well() {
    let daemon = Daemon::start();
    for (name, fault) in [("corrupt", "corrupt:0.01"), ("torn", "torn:0.01")] {
        let uri = daemon.array(name, "concat", &[&format!("faulty(mem:64M,{fault})")]);
        let out =
            bench(&["--op", "mixed", "--count", "20000", "--depth", "16", "--span", "8M", "--verify", "--json", &uri]);
        assert_eq!(out.status.code(), Some(7), "{name}: {}", said(&out));
        let found: Value = serde_json::from_slice(&out.stdout).expect("it is JSON");
        assert!(number(&found["results"][0]["mismatch_count"]) >= 1.0, "{found}");
    }
    let slow = daemon.array("slow", "concat", &["throttled(mem:64M,latency=20ms)"]);
    let found = document(&[&slow, "--rate", "1000", "--depth", "1", "--time", "400ms", "--slices", "1"]);
    let result = &found["results"][0];
    let begun = number(&result["latency"]["count"]);
    assert!(begun <= 21.0, "{result}");
    assert_eq!(number(&result["behind_ios"]) + begun, 400.0, "{result}");
    assert!(number(&result["latency"]["max_ns"]) > 20e6 * begun * 0.9, "{result}");
}
