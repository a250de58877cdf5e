//! `make demo` in a freshly cloned repository.

use crate::support::*;

#[test]
fn the_demo_shows_all_of_the_capacity_and_cleans_up() {
    let folder = Folder::new();
    let temporary = folder.join("tmp");
    std::fs::create_dir(&temporary).expect("a folder can be made");
    let mut demo = command("timeout");
    demo.args(["--signal=KILL", "240", BRAID, "demo"]).env("TMPDIR", &temporary);
    places(&mut demo, &folder);
    let out = demo.output().expect("timeout runs");
    let text = said(&out);
    assert!(out.status.success(), "{text}");
    // 50 + 100 + 100 GiB less three labels: "249.9x GiB" or "250.00 GiB".
    assert!(text.contains("249.9") || text.contains("250.00 GiB"), "{text}");
    assert!(text.contains("raid0") && text.to_lowercase().contains("zone"), "{text}");
    assert!(text.contains("nbdcopy") || text.contains("fio"), "it says which client verified: {text}");
    let left: Vec<_> = std::fs::read_dir(&temporary).expect("the folder is there").filter_map(Result::ok).collect();
    assert!(left.is_empty(), "the demo left {left:?}");
}
