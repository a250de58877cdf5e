//! Names, boots, and whom a folder belongs to. Deaths of processes are in `tests/the_tail_survives_a_kill.rs`.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::Ordering;

use super::*;

const POOL: Uuid = Uuid::from_u128(0x1234_5678_9abc_def0_1234_5678_9abc_def0);
const BYTES: usize = 64 << 10;

/// A folder of this test, removed at its end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("braid-shm-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    fn tails(&self) -> PathBuf {
        self.0.join("tails")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn kind<T>(result: Result<T, RingError>) -> RingErrorKind {
    result.err().expect("refused").kind
}

#[test]
fn names_come_back_and_others_are_left_alone() {
    let name = TailName { boot: Uuid::from_u128(7), pool: POOL, session: u64::MAX };
    assert_eq!(TailName::parse(&name.to_string()), Some(name));
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
        assert_eq!(TailName::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn a_tail_is_all_zeros_private_and_found_again() {
    let place = Place::new("again");
    let folder = TailFolder::open(&place.tails()).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place.tails()), 0o700);
    assert!(folder.attach(POOL, 3).unwrap().is_none());
    let tail = folder.create(POOL, 3, BYTES).unwrap();
    assert_eq!(tail.words().len(), BYTES / 8);
    assert!(tail.words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
    let path = place.tails().join(tail.name().to_string());
    let boot = std::fs::read_to_string(BOOT_ID).unwrap();
    assert_eq!(path.file_name().unwrap().to_str().unwrap(), format!("{}-{POOL}-3", boot.trim()));
    assert_eq!(mode(&path), 0o600);
    assert!(std::os::linux::fs::MetadataExt::st_blocks(&std::fs::metadata(&path).unwrap()) >= BYTES as u64 / 512);
    for (k, word) in tail.words().iter().enumerate() {
        word.store(k as u64 ^ 0x5555, Ordering::Relaxed);
    }
    assert_eq!(kind(folder.create(POOL, 3, BYTES)), RingErrorKind::Conflict);
    let refused = folder.attach(POOL, 3).unwrap_err();
    assert_eq!(refused.kind, RingErrorKind::InUse);
    assert!(refused.to_string().contains("this process"), "{refused}");
    assert_eq!(kind(folder.remove(tail.name())), RingErrorKind::InUse);
    drop(tail);
    let tail = TailFolder::open(&place.tails()).unwrap().attach(POOL, 3).unwrap().expect("it was left");
    assert!(tail.words().iter().enumerate().all(|(k, word)| word.load(Ordering::Relaxed) == k as u64 ^ 0x5555));
    assert!(tail.is_there());
    folder.remove_own(tail).unwrap();
    assert!(!path.exists());
    assert!(folder.attach(POOL, 3).unwrap().is_none());
    for bytes in [0, 4095, 4104] {
        assert_eq!(kind(folder.create(POOL, 3, bytes)), RingErrorKind::Limit);
    }
}

#[test]
fn those_of_a_pool_are_listed_and_those_of_another_boot_are_not_opened() {
    let place = Place::new("boots");
    let folder = TailFolder::open(&place.tails()).unwrap();
    let before = TailFolder::open_in_boot(&place.tails(), Uuid::from_u128(5)).unwrap();
    let other_pool = Uuid::from_u128(9);
    for (folder, pool, session) in
        [(&folder, POOL, 12), (&folder, POOL, 4), (&before, POOL, 4), (&folder, other_pool, 1)]
    {
        folder.create(pool, session, 4096).unwrap();
    }
    std::fs::write(place.tails().join("notes"), "of somebody").unwrap();
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
fn what_is_somebody_elses_is_refused() {
    let place = Place::new("others");
    let folder = TailFolder::open(&place.tails()).unwrap();
    let name = folder.name(POOL, 1);
    let path = place.tails().join(name.to_string());
    let refused = |expected| {
        let got = kind(folder.attach(POOL, 1));
        let removed = kind(folder.remove(&name));
        assert_eq!((got, removed), (expected, expected));
        let left = std::fs::symlink_metadata(&path).expect("nobody has touched it");
        if left.is_dir() { std::fs::remove_dir(&path).unwrap() } else { std::fs::remove_file(&path).unwrap() }
    };
    std::fs::write(place.0.join("theirs"), vec![1; 8192]).unwrap();
    symlink(place.0.join("theirs"), &path).unwrap();
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

    symlink(place.tails(), place.0.join("link")).unwrap();
    assert_eq!(kind(TailFolder::open(&place.0.join("link"))), RingErrorKind::Conflict);
    assert_eq!(kind(TailFolder::open(&place.0.join("theirs"))), RingErrorKind::Conflict);
    assert_eq!(kind(TailFolder::open(&place.0.join("no/where"))), RingErrorKind::NotFound);
    std::fs::set_permissions(place.tails(), std::fs::Permissions::from_mode(0o750)).unwrap();
    assert_eq!(kind(TailFolder::open(&place.tails())), RingErrorKind::Permission);
    std::fs::set_permissions(place.tails(), std::fs::Permissions::from_mode(0o700)).unwrap();

    // Only root can make a file of somebody else; for all others there is one of root's.
    if rustix::process::geteuid().is_root() {
        drop(folder.create(POOL, 1, 4096).unwrap());
        std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
        refused(RingErrorKind::Permission);
        std::os::unix::fs::chown(place.tails(), Some(12345), None).unwrap();
        assert_eq!(kind(TailFolder::open(&place.tails())), RingErrorKind::Permission);
    } else {
        assert_eq!(kind(TailFolder::open(Path::new("/proc"))), RingErrorKind::Permission);
    }
}

#[test]
fn one_that_was_removed_meanwhile_is_noticed() {
    let place = Place::new("removed");
    let folder = TailFolder::open(&place.tails()).unwrap();
    let tail = folder.create(POOL, 1, BYTES).unwrap();
    std::fs::remove_file(place.tails().join(tail.name().to_string())).unwrap();
    assert!(!tail.is_there());
    tail.words()[100].store(1, Ordering::Relaxed);
    // Another one of the same name is not this one's to remove.
    let other = folder.create(POOL, 1, BYTES).unwrap();
    folder.remove_own(tail).unwrap();
    assert!(other.is_there());
}
