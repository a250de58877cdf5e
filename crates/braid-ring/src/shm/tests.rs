//! Tests of log names, boots and ownership. Tests that kill processes are in `tests/ring/shared_log_survives_kill.rs`.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::Ordering;

use super::*;

const POOL: Uuid = Uuid::from_u128(0x1234_5678_9abc_def0_1234_5678_9abc_def0);
const BYTES: usize = 64 << 10;

/// A folder for a test, removed on drop.
struct TempFolder(PathBuf);

impl TempFolder {
    fn new(name: &str) -> TempFolder {
        let path = std::env::temp_dir().join(format!("braid-shm-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        TempFolder(path)
    }

    fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn kind<T>(result: Result<T, RingError>) -> RingErrorKind {
    result.err().expect("refused").kind
}

#[test]
fn names_round_trip_and_other_names_are_rejected() {
    let name = SharedLogName { boot: Uuid::from_u128(7), pool: POOL, session: u64::MAX };
    assert_eq!(SharedLogName::parse(&name.to_string()), Some(name));
    let text = name.to_string();
    for wrong in [
        "",
        "readme",
        &text[1..],
        &text[..73],
        &text.to_uppercase(),
        &format!("{text}0"),
        &text.replace("-18446744073709551615", "-07"),
        &text.replace("-18446744073709551615", "-+7"),
        &format!("{}é", &text[..35]),
    ] {
        assert_eq!(SharedLogName::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn a_new_log_is_zeroed_private_and_can_be_attached() {
    let temp = TempFolder::new("again");
    let folder = SharedLogFolder::open(&temp.logs()).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&temp.logs()), 0o700);
    assert!(folder.attach(POOL, 3).unwrap().is_none());
    let log = folder.create(POOL, 3, BYTES).unwrap();
    assert_eq!(log.words().len(), BYTES / 8);
    assert!(log.words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
    let path = temp.logs().join(log.name().to_string());
    let boot = std::fs::read_to_string(BOOT_ID).unwrap();
    assert_eq!(path.file_name().unwrap().to_str().unwrap(), format!("{}-{POOL}-3", boot.trim()));
    assert_eq!(mode(&path), 0o600);
    assert!(std::os::linux::fs::MetadataExt::st_blocks(&std::fs::metadata(&path).unwrap()) >= BYTES as u64 / 512);
    for (k, word) in log.words().iter().enumerate() {
        word.store(k as u64 ^ 0x5555, Ordering::Relaxed);
    }
    assert_eq!(kind(folder.create(POOL, 3, BYTES)), RingErrorKind::Conflict);
    let refused = folder.attach(POOL, 3).unwrap_err();
    assert_eq!(refused.kind, RingErrorKind::InUse);
    assert!(refused.to_string().contains("this process"), "{refused}");
    assert_eq!(kind(folder.remove(log.name())), RingErrorKind::InUse);
    drop(log);
    let log = SharedLogFolder::open(&temp.logs()).unwrap().attach(POOL, 3).unwrap().expect("it was left");
    assert!(log.words().iter().enumerate().all(|(k, word)| word.load(Ordering::Relaxed) == k as u64 ^ 0x5555));
    assert!(log.is_intact());
    folder.remove_attached(log).unwrap();
    assert!(!path.exists());
    assert!(folder.attach(POOL, 3).unwrap().is_none());
    for bytes in [0, 4095, 4104] {
        assert_eq!(kind(folder.create(POOL, 3, bytes)), RingErrorKind::Limit);
    }
}

#[test]
fn a_pools_logs_are_listed_and_those_of_another_boot_are_not_attached() {
    let temp = TempFolder::new("boots");
    let folder = SharedLogFolder::open(&temp.logs()).unwrap();
    let before = SharedLogFolder::open_in_boot(&temp.logs(), Uuid::from_u128(5)).unwrap();
    let other_pool = Uuid::from_u128(9);
    for (folder, pool, session) in
        [(&folder, POOL, 12), (&folder, POOL, 4), (&before, POOL, 4), (&folder, other_pool, 1)]
    {
        folder.create(pool, session, 4096).unwrap();
    }
    std::fs::write(temp.logs().join("notes"), "of another program").unwrap();
    let mut expected = vec![before.name(POOL, 4), folder.name(POOL, 4), folder.name(POOL, 12)];
    expected.sort();
    assert_eq!(folder.list(POOL).unwrap(), expected);
    folder.remove(&folder.name(POOL, 4)).unwrap();
    assert!(folder.attach(POOL, 4).unwrap().is_none(), "that one is of another boot");
    folder.remove(&before.name(POOL, 4)).unwrap();
    folder.remove(&before.name(POOL, 4)).expect("it is gone already");
    assert_eq!(folder.list(POOL).unwrap(), [folder.name(POOL, 12)]);
}

#[test]
fn foreign_files_and_folders_are_refused() {
    let temp = TempFolder::new("others");
    let folder = SharedLogFolder::open(&temp.logs()).unwrap();
    let name = folder.name(POOL, 1);
    let path = temp.logs().join(name.to_string());
    let refused = |expected| {
        let got = kind(folder.attach(POOL, 1));
        let removed = kind(folder.remove(&name));
        assert_eq!((got, removed), (expected, expected));
        let left = std::fs::symlink_metadata(&path).expect("it is untouched");
        if left.is_dir() { std::fs::remove_dir(&path).unwrap() } else { std::fs::remove_file(&path).unwrap() }
    };
    std::fs::write(temp.0.join("theirs"), vec![1; 8192]).unwrap();
    symlink(temp.0.join("theirs"), &path).unwrap();
    assert_eq!(kind(folder.create(POOL, 1, 4096)), RingErrorKind::Conflict);
    refused(RingErrorKind::Conflict);
    std::fs::create_dir(&path).unwrap();
    refused(RingErrorKind::Conflict);
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    refused(RingErrorKind::Conflict);
    drop(folder.create(POOL, 1, 4096).unwrap());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    refused(RingErrorKind::Permission);

    drop(folder.create(POOL, 1, 4096).unwrap());
    File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
    assert_eq!(kind(folder.attach(POOL, 1)), RingErrorKind::Conflict);
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    assert!(folder.attach(POOL, 1).unwrap().is_none(), "it was never whole");
    folder.remove(&name).unwrap();

    symlink(temp.logs(), temp.0.join("link")).unwrap();
    assert_eq!(kind(SharedLogFolder::open(&temp.0.join("link"))), RingErrorKind::Conflict);
    assert_eq!(kind(SharedLogFolder::open(&temp.0.join("theirs"))), RingErrorKind::Conflict);
    assert_eq!(kind(SharedLogFolder::open(&temp.0.join("no/where"))), RingErrorKind::NotFound);
    std::fs::set_permissions(temp.logs(), std::fs::Permissions::from_mode(0o750)).unwrap();
    assert_eq!(kind(SharedLogFolder::open(&temp.logs())), RingErrorKind::Permission);
    std::fs::set_permissions(temp.logs(), std::fs::Permissions::from_mode(0o700)).unwrap();

    // Only root can create a file of another user; other users test with a folder of root's.
    if rustix::process::geteuid().is_root() {
        drop(folder.create(POOL, 1, 4096).unwrap());
        std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
        refused(RingErrorKind::Permission);
        std::os::unix::fs::chown(temp.logs(), Some(12345), None).unwrap();
        assert_eq!(kind(SharedLogFolder::open(&temp.logs())), RingErrorKind::Permission);
    } else {
        assert_eq!(kind(SharedLogFolder::open(Path::new("/proc"))), RingErrorKind::Permission);
    }
}

#[test]
fn a_removed_log_is_detected() {
    let temp = TempFolder::new("removed");
    let folder = SharedLogFolder::open(&temp.logs()).unwrap();
    let log = folder.create(POOL, 1, BYTES).unwrap();
    std::fs::remove_file(temp.logs().join(log.name().to_string())).unwrap();
    assert!(!log.is_intact());
    log.words()[100].store(1, Ordering::Relaxed);
    // Another log with the same name must not be removed.
    let other = folder.create(POOL, 1, BYTES).unwrap();
    folder.remove_attached(log).unwrap();
    assert!(other.is_intact());
}
