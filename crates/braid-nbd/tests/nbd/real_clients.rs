//! Common clients against the server on a real ring. `make test` installs them.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use crate::bed::*;
use braid_nbd::server::ServerConfig;

#[track_caller]
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}; install libnbd-bin, qemu-utils and fio"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {out}{err}");
    out
}

struct File(PathBuf);

impl File {
    fn new(name: &str) -> File {
        File(std::env::temp_dir().join(format!("braid-nbd-{}-{name}", std::process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// 32 MiB with holes in it.
fn content() -> Vec<u8> {
    let mut random = Random(77);
    let mut data = vec![0; 32 << 20];
    for block in data.chunks_exact_mut(65536) {
        if random.below(3) > 0 {
            block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
        }
    }
    data
}

fn bed() -> Arc<Bed> {
    let bed = Bed::new(2, ServerConfig::default());
    bed.export("disk", "mem:32M");
    bed.export("second", "mem:1G");
    Arc::new(bed)
}

#[test]
fn nbdinfo() {
    let bed = bed();
    let listener = bed.listen("info");
    let output = run("nbdinfo", &["--json", &listener.uri("disk")]);
    for part in [
        "\"protocol\": \"newstyle-fixed\"",
        "\"structured\": true",
        "\"export-name\": \"disk\"",
        "\"export-size\": 33554432",
        "\"base:allocation\"",
        "\"is_read_only\": false",
        "\"can_cache\": true",
        "\"can_df\": true",
        "\"can_fast_zero\": true",
        "\"can_flush\": true",
        "\"can_fua\": true",
        "\"can_multi_conn\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"block_size_minimum\": 512",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 33554432",
    ] {
        assert!(output.contains(part), "{part} is missing in {output}");
    }
    let list = run("nbdinfo", &["--list", &listener.uri("")]);
    assert!(list.contains("export=\"disk\"") && list.contains("export=\"second\""), "{list}");
    assert_eq!(run("nbdinfo", &["--size", &listener.uri("second")]).trim(), "1073741824");
    let map = run("nbdinfo", &["--map", &listener.uri("disk")]);
    assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["0", "33554432", "0", "data"]);
}

#[test]
fn nbdcopy_both_ways() {
    let bed = bed();
    let listener = bed.listen("copy");
    let (source, back) = (File::new("source"), File::new("back"));
    std::fs::write(&source.0, content()).unwrap();
    for request in ["4096", "262144", "8388608"] {
        let size = format!("--request-size={request}");
        run("nbdcopy", &[&size, "--flush", "--connections=4", source.path(), &listener.uri("disk")]);
        run("nbdcopy", &[&size, "--connections=4", &listener.uri("disk"), back.path()]);
        assert!(std::fs::read(&back.0).unwrap() == content(), "{request}");
        // The next round must write everything again.
        run("qemu-io", &["-f", "raw", "-c", "write -P 0xee 0 32M", &listener.uri("disk")]);
    }
    assert_eq!(bed.table.find("disk").unwrap().stats().errors, 0);
}

#[test]
fn qemu_io_and_qemu_img() {
    let bed = bed();
    let listener = bed.listen("qemu");
    let uri = listener.uri("disk");
    let script = [
        "write -P 0x11 0 64k",
        "write -f -P 0x22 64k 4k",
        "write -z 128k 1M",
        "write -z -u 4M 1M",
        "discard 8M 1M",
        "aio_write -P 0x33 16M 1M",
        "aio_write -P 0x44 17M 512",
        "aio_flush",
        "flush",
        "read -P 0x11 0 64k",
        "read -P 0x22 64k 4k",
        "read -P 0 128k 1M",
        "read -P 0 4M 1M",
        "read -P 0x33 16M 1M",
        "read -P 0x44 17M 512",
    ];
    let mut arguments = vec!["-f", "raw"];
    script.iter().for_each(|line| arguments.extend(["-c", line]));
    arguments.push(&uri);
    let out = run("qemu-io", &arguments);
    assert!(!out.contains("failed") && !out.contains("error"), "{out}");
    let image = File::new("image");
    std::fs::write(&image.0, content()).unwrap();
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", image.path(), &uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", image.path(), &uri]);
    let qcow = File::new("qcow2");
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, qcow.path()]);
    run("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", qcow.path(), &uri]);
    assert_eq!(bed.table.find("disk").unwrap().stats().errors, 0);
}

#[test]
fn fio_with_verify_from_several_connections() {
    let bed = bed();
    let listener = bed.listen("fio");
    let uri = format!("--uri={}", listener.uri("disk"));
    let output = run(
        "fio",
        &[
            "--ioengine=nbd",
            &uri,
            "--name=v",
            "--numjobs=4",
            "--size=8M",
            "--offset_increment=8M",
            "--rw=randwrite",
            "--bsrange=512-64k",
            "--blockalign=512",
            "--iodepth=32",
            "--verify=crc32c",
            "--do_verify=1",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--thread",
            "--group_reporting",
        ],
    );
    assert!(output.contains("err= 0"), "{output}");
}
