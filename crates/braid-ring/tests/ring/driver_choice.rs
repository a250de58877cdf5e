//! Which driver a shard gets if the kernel, or a system call filter like those of containers, denies some.
//!
//! A process cannot remove such a filter. So each case runs this program again under a filter, with only the test
//! [`the_best_permitted_driver_is_chosen`], which reads the expected result from its environment.

#![allow(unsafe_code)] // Filters of system calls, in children made for them.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::common::{Folder, TestBed, starting_children};
use braid_engine::{Flags, ShardId};
use braid_ring::{DriverKind, Ring, RingConfig, RingErrorKind};

/// The expected driver, and a word that each reason for skipping a better driver must contain, in order.
const EXPECT: &str = "BRAID_TEST_EXPECT_DRIVER";

/// Offset of the system call number in the data of a filter (struct seccomp_data).
const CALL_NUMBER: u32 = 0;

/// Returns a filter that fails some calls with an error number and permits all others.
fn filter(denied: &[(libc::c_long, i32)]) -> Vec<libc::sock_filter> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, CALL_NUMBER)];
    for (call, errno) in denied {
        let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        program.push(libc::sock_filter { code, jt: 0, jf: 1, k: *call as u32 });
        program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | *errno as u32));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    program
}

/// Applies a filter to this process. Allocates nothing, because it is called between fork and exec.
fn confine(program: &mut [libc::sock_filter]) -> std::io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the first call takes no memory; the second reads the program, which lives until it returns.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn expect_under(denied: &[(libc::c_long, i32)], driver: DriverKind, reasons: &[&str]) {
    let _children = starting_children();
    let mut program = filter(denied);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["driver_choice::the_best_permitted_driver_is_chosen", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(EXPECT, format!("{driver}|{}", reasons.join("|")));
    // SAFETY: `confine` makes two system calls, and uses no lock and no heap.
    unsafe { command.pre_exec(move || confine(&mut program)) };
    let output = command.output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "denied {denied:?}:\n{text}");
    assert!(text.contains("1 passed"), "the child has run its test:\n{text}");
}

#[test]
fn the_best_permitted_driver_is_chosen() {
    let expected = std::env::var(EXPECT).unwrap_or_else(|_| "io_uring|".into());
    let mut expected = expected.split('|');
    let kind: DriverKind = expected.next().unwrap().parse().unwrap();
    let reasons: Vec<&str> = expected.filter(|r| !r.is_empty()).collect();

    let folder = Folder::new("choice");
    let mut bed = TestBed::new(&RingConfig { shards: 2, ..RingConfig::default() });
    for shard in 0..2 {
        let info = bed.handle.driver(ShardId(shard));
        assert_eq!(info.kind, kind);
        let passed: Vec<DriverKind> = info.skipped.iter().map(|p| p.0).collect();
        assert_eq!(passed, DriverKind::ALL[..reasons.len()]);
        for ((_, text), word) in info.skipped.iter().zip(&reasons) {
            assert!(text.contains(word), "`{text}` does not say `{word}`");
        }
    }
    // The driver works, and does not merely start.
    let (device, _) = bed.bare(&format!("file:{},size=4M", folder.path("disk")));
    let data = [0x5a; 64 << 10];
    bed.write(0, device, Flags::FUA, 128 << 10, &data);
    assert_eq!(bed.read(1, device, 128 << 10, 64 << 10), data);
    bed.ring.stop();

    // A denied driver that was named explicitly is not replaced by another.
    for denied in &DriverKind::ALL[..reasons.len()] {
        let config = RingConfig { driver: Some(*denied), ..RingConfig::default() };
        let Err(error) = Ring::start(&config, |_| vec![]) else { panic!("{denied} is denied") };
        let text = error.to_string();
        assert!(text.contains(denied.name()) && text.contains("name another driver"), "{text}");
        assert_ne!(error.kind, RingErrorKind::Limit);
    }
}

#[test]
fn without_io_uring_it_is_libaio() {
    expect_under(&[(libc::SYS_io_uring_setup, libc::EPERM)], DriverKind::Libaio, &["forbidden"]);
    expect_under(&[(libc::SYS_io_uring_setup, libc::ENOSYS)], DriverKind::Libaio, &["5.11"]);
    expect_under(&[(libc::SYS_io_uring_setup, libc::ENOMEM)], DriverKind::Libaio, &["ulimit -l"]);
}

#[test]
fn an_io_uring_that_may_be_created_but_not_used_is_skipped() {
    expect_under(&[(libc::SYS_io_uring_enter, libc::EPERM)], DriverKind::Libaio, &["forbidden"]);
}

#[test]
fn without_io_uring_and_libaio_it_is_threads() {
    let no_uring = (libc::SYS_io_uring_setup, libc::EPERM);
    expect_under(&[no_uring, (libc::SYS_io_setup, libc::EPERM)], DriverKind::Threads, &["forbidden", "seccomp"]);
    expect_under(&[no_uring, (libc::SYS_io_setup, libc::EAGAIN)], DriverKind::Threads, &["forbidden", "aio-max-nr"]);
    // A libaio that may be set up but not used.
    expect_under(&[no_uring, (libc::SYS_io_submit, libc::EPERM)], DriverKind::Threads, &["forbidden", "seccomp"]);
    expect_under(&[no_uring, (libc::SYS_io_getevents, libc::ENOSYS)], DriverKind::Threads, &["forbidden", "hides"]);
}

#[test]
fn epoll_pwait2_is_optional() {
    let denied = [
        (libc::SYS_io_uring_setup, libc::ENOSYS),
        (libc::SYS_io_setup, libc::ENOSYS),
        (libc::SYS_epoll_pwait2, libc::EPERM),
    ];
    expect_under(&denied, DriverKind::Threads, &["5.11", "hides"]);
}
