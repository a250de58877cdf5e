//! Tests of a device's life cycle against a scripted driver.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use zerocopy::IntoBytes;

use super::*;
use crate::abi::{ControlCommand, ControlOp};
use crate::control::{Answer, Speak};

/// An expected command: operation, encoding, result, and output.
type Expected = (ControlOp, bool, Result<i32, i32>, Vec<u8>);

/// The expected commands, `data` of the last command, the lock that delays commands, and the results of the queues: one list for each probe.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<VecDeque<Expected>>>, Arc<Mutex<u64>>, Arc<Mutex<()>>, Arc<Mutex<VecDeque<Vec<i32>>>>);

impl Script {
    fn expect(&self, op: ControlOp, encoded: bool, result: Result<i32, i32>, out: &[u8]) {
        self.0.lock().unwrap().push_back((op, encoded, result, out.to_vec()));
    }

    fn last_data(&self) -> u64 {
        *self.1.lock().unwrap()
    }

    /// Delays commands until the guard is dropped.
    fn hold(&self) -> MutexGuard<'_, ()> {
        self.2.lock().unwrap()
    }

    /// Adds the results of the next probe of a device's queues; none: the device's file is busy.
    fn expect_queues(&self, results: &[i32]) {
        self.3.lock().unwrap().push_back(results.to_vec());
    }

    fn is_over(&self) -> bool {
        self.0.lock().unwrap().is_empty() && self.3.lock().unwrap().is_empty()
    }
}

impl Speak for Script {
    fn speak(&self, code: u32, command: ControlCommand, data: &mut [u8]) -> Answer {
        drop(self.hold());
        *self.1.lock().unwrap() = command.data;
        let (op, encoded, result, out) = self.0.lock().unwrap().pop_front().expect("an unexpected command");
        assert_eq!(code, op.code(encoded), "{} was expected", op.name);
        data[..out.len()].copy_from_slice(&out);
        result.map_err(io::Error::from_raw_os_error)
    }

    fn speak_to_queues(&self, id: u32, queues: u16) -> io::Result<Vec<Answer>> {
        let results = self.3.lock().unwrap().pop_front().expect("an unexpected probe");
        if results.is_empty() {
            return Err(io::Error::from_raw_os_error(EBUSY));
        }
        assert_eq!((id, usize::from(queues)), (3, results.len()));
        Ok(results.into_iter().map(|number| Err(io::Error::from_raw_os_error(number))).collect())
    }
}

const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ENODEV: i32 = 19;
const ENOMEM: i32 = 12;
const EOPNOTSUPP: i32 = 95;

/// Results of queues that have a server, or had one.
const SERVED: &[i32] = &[EINVAL, EINVAL];

fn modern() -> (Script, Control) {
    let script = Script::default();
    let all = abi::F_NEED_GET_DATA | abi::F_USER_RECOVERY | abi::F_USER_RECOVERY_REISSUE | abi::F_CMD_IOCTL_ENCODE;
    script.expect(abi::GET_FEATURES, true, Ok(0), &all.to_ne_bytes());
    let control = Control::of(Box::new(script.clone())).unwrap();
    assert_eq!(control.features().words(), ["get_data", "user_recovery", "reissue", "ioctl_encode"]);
    (script, control)
}

fn setup() -> DeviceSetup {
    let shape = Shape { queues: 2, depth: 64 };
    DeviceSetup { mark: 7, shape, size_bytes: 1 << 30, block_bytes: 4096, read_only: true }
}

fn found(state: u16) -> DeviceInfo {
    DeviceInfo { dev_id: 3, state, ublksrv_pid: 99, ..setup().info() }
}

#[test]
fn a_driver_without_get_features_gets_the_old_numbers() {
    for refusal in [EINVAL, EOPNOTSUPP] {
        let script = Script::default();
        script.expect(abi::GET_FEATURES, true, Err(refusal), &[]);
        let control = Control::of(Box::new(script.clone())).unwrap();
        script.expect(abi::STOP_DEV, false, Ok(0), &[]);
        control.stop(3).unwrap();
        assert!(script.is_over() && control.features().words().is_empty());
    }
}

#[test]
fn a_device_is_added_with_its_limits() {
    let (script, control) = modern();
    let wanted = setup().info();
    let agreed = DeviceInfo { dev_id: 5, ..wanted };
    script.expect(abi::ADD_DEV, true, Ok(0), agreed.as_bytes());
    script.expect(abi::SET_PARAMS, true, Ok(0), &[]);
    let device = Device::find_or_make(&control, &setup()).unwrap();
    assert_eq!((device.id, device.is_recovered), (5, false));
    assert!(script.is_over());
    let params = setup().params(&agreed);
    assert_eq!((params.len, params.basic.logical_bs_shift, params.basic.physical_bs_shift), (60, 12, 12));
    assert_eq!((params.basic.dev_sectors, params.basic.max_sectors), (1 << 21, 2048));
    assert_eq!(params.basic.attrs, abi::ATTR_READ_ONLY | abi::ATTR_VOLATILE_CACHE | abi::ATTR_FUA);
}

#[test]
fn a_device_that_the_driver_cannot_serve_is_removed() {
    let (script, control) = modern();
    let agreed = DeviceInfo { dev_id: 5, flags: abi::F_USER_RECOVERY, ..setup().info() };
    script.expect(abi::ADD_DEV, true, Ok(0), agreed.as_bytes());
    script.expect(abi::DEL_DEV_ASYNC, true, Ok(0), &[]);
    assert_eq!(Device::find_or_make(&control, &setup()).unwrap_err().kind, UblkErrorKind::Unsupported);
    script.expect(abi::ADD_DEV, true, Ok(0), setup().info().as_bytes());
    script.expect(abi::SET_PARAMS, true, Err(EINVAL), &[]);
    script.expect(abi::DEL_DEV_ASYNC, true, Ok(0), &[]);
    assert_eq!(Device::find_or_make(&control, &setup()).unwrap_err().kind, UblkErrorKind::Os);
    script.expect(abi::ADD_DEV, true, Err(ENOMEM), &[]);
    let error = Device::find_or_make(&control, &setup()).unwrap_err();
    assert!(error.kind == UblkErrorKind::Limit && error.remedy.contains("--depth"), "{error}");
    assert!(script.is_over());
}

#[test]
fn a_device_is_found_by_its_mark() {
    let (script, control) = modern();
    let other = DeviceInfo { ublksrv_flags: 8, ..found(abi::STATE_LIVE) };
    script.expect(abi::GET_DEV_INFO, true, Ok(0), other.as_bytes());
    script.expect(abi::GET_DEV_INFO, true, Err(19), &[]);
    script.expect(abi::GET_DEV_INFO, true, Ok(0), found(abi::STATE_QUIESCED).as_bytes());
    let device = Device::find_among(&control, 7, &[0, 1, 3]).unwrap();
    assert_eq!(device, Some(found(abi::STATE_QUIESCED)));
}

#[test]
fn a_device_is_taken_over_once_the_kernel_has_cleaned_up_after_its_server() {
    let (script, control) = modern();
    script.expect_queues(&[]);
    script.expect_queues(SERVED);
    script.expect(abi::START_USER_RECOVERY, true, Err(EBUSY), &[]);
    script.expect(abi::START_USER_RECOVERY, true, Ok(0), &[]);
    let device = Device::take_over(&control, found(abi::STATE_QUIESCED), RECOVERY_MAX).unwrap().unwrap();
    assert!(device.is_recovered);
    let mut opening = opening_of(device, &[ACCEPTED, ACCEPTED]);
    script.expect(abi::END_USER_RECOVERY, true, Ok(0), &[]);
    opening.begin(&control).unwrap();
    // A second call does nothing.
    opening.begin(&control).unwrap();
    assert!(script.is_over());
}

/// The opening of a device, with these replies of its shards.
fn opening_of(device: Device, replies: &[u8]) -> Opening {
    let opening = Opening::of(device);
    opening.queues.iter().zip(replies).for_each(|(shared, state)| shared.accepted.set(*state));
    opening
}

#[test]
fn a_takeover_that_failed_part_way_goes_on_from_there() {
    let (script, control) = modern();
    let device = Device { id: 3, info: found(abi::STATE_QUIESCED), is_recovered: true, is_torn: false };
    let mut opening = opening_of(device, &[ACCEPTED, REFUSED]);
    // The driver gets no command on which it would wait.
    let error = opening.begin(&control).unwrap_err();
    assert!(error.kind == UblkErrorKind::Limit && error.context.contains("1 of the 2 queues"), "{error}");
    opening.queues[1].accepted.set(ACCEPTED);
    script.expect(abi::END_USER_RECOVERY, true, Err(EBUSY), &[]);
    script.expect(abi::GET_DEV_INFO, true, Ok(0), found(abi::STATE_QUIESCED).as_bytes());
    assert_eq!(opening.begin(&control).unwrap_err().kind, UblkErrorKind::Busy);
    // The earlier command has completed.
    let live = DeviceInfo { ublksrv_pid: std::process::id() as i32, ..found(abi::STATE_LIVE) };
    script.expect(abi::END_USER_RECOVERY, true, Err(EBUSY), &[]);
    script.expect(abi::GET_DEV_INFO, true, Ok(0), live.as_bytes());
    opening.begin(&control).unwrap();
    assert!(script.is_over());
}

#[test]
fn a_takeover_that_another_daemon_has_begun_is_continued() {
    let (script, control) = modern();
    script.expect(abi::START_USER_RECOVERY, true, Err(EBUSY), &[]);
    script.expect(abi::START_USER_RECOVERY, true, Err(EINVAL), &[]);
    script.expect(abi::GET_DEV_INFO, true, Ok(0), found(abi::STATE_QUIESCED).as_bytes());
    let device = Device::take_over(&control, found(abi::STATE_LIVE), RECOVERY_MAX).unwrap().unwrap();
    assert!(device.is_recovered && device.info.state == abi::STATE_QUIESCED);
    script.expect(abi::END_USER_RECOVERY, true, Ok(0), &[]);
    opening_of(device, &[ACCEPTED, ACCEPTED]).begin(&control).unwrap();

    // The device is removed meanwhile, or its number belongs to another one; a stopped one is removed.
    let refused = |info: Result<DeviceInfo, i32>| {
        script.expect_queues(SERVED);
        script.expect(abi::START_USER_RECOVERY, true, Err(EINVAL), &[]);
        script.expect(abi::GET_DEV_INFO, true, info.map(|_| 0), info.unwrap_or_default().as_bytes());
        Device::take_over(&control, found(abi::STATE_QUIESCED), RECOVERY_MAX)
    };
    assert!(refused(Err(ENODEV)).unwrap().is_none());
    assert!(refused(Ok(DeviceInfo { ublksrv_flags: 8, ..found(abi::STATE_QUIESCED) })).unwrap().is_none());
    // No takeover has begun of a live device, or of one that does not outlive its server.
    assert_eq!(refused(Ok(found(abi::STATE_LIVE))).unwrap_err().kind, UblkErrorKind::Os);
    assert!(refused(Ok(DeviceInfo { flags: abi::F_NEED_GET_DATA, ..found(abi::STATE_QUIESCED) })).is_err());
    script.expect_queues(SERVED);
    script.expect(abi::START_USER_RECOVERY, true, Err(EINVAL), &[]);
    script.expect(abi::GET_DEV_INFO, true, Ok(0), found(abi::STATE_DEAD).as_bytes());
    script.expect(abi::DEL_DEV_ASYNC, true, Ok(0), &[]);
    assert!(Device::take_over(&control, found(abi::STATE_QUIESCED), RECOVERY_MAX).unwrap().is_none());
    assert!(script.is_over());
}

#[test]
fn queues_are_mapped_last() {
    let (script, control) = modern();
    let device = || Device { id: 3, info: found(abi::STATE_QUIESCED), is_recovered: true, is_torn: false };
    let open = |path: &str| Some(Arc::new(File::open(path).unwrap()));
    // A file that cannot be mapped is noticed only once all shards have their queues; the takeover is not ended then.
    let mut opening = opening_of(device(), &[ACCEPTED, REFUSED]);
    opening.file = open("/dev/null");
    assert_eq!(opening.shares(&control).unwrap().len(), 1, "nothing is mapped for the missing queue");
    opening.queues[1].accepted.reply(false);
    assert_eq!(opening.begin(&control).unwrap_err().kind, UblkErrorKind::Limit);
    opening.queues[1].accepted.reply(true);
    let error = opening.begin(&control).unwrap_err();
    assert!(error.context.contains("mapping queue 0"), "{error}");
    // A file that can be mapped is mapped once.
    opening.file = open("/dev/zero");
    script.expect(abi::END_USER_RECOVERY, true, Ok(0), &[]);
    opening.begin(&control).unwrap();
    assert!(opening.queues.iter().all(|shared| shared.descriptors.get().is_some()) && script.is_over());
    // The driver's error for queues that another process has mapped.
    let error = opening.map_error(io::Error::from_raw_os_error(EINVAL), 0);
    assert!(error.remedy.contains("restart the daemon"), "{}", error.remedy);
}

#[test]
fn no_takeover_begins_that_would_crash_an_older_driver() {
    let (script, control) = modern();
    // A takeover has begun and no queue is served: the driver would crash on a second beginning, and needs none.
    script.expect_queues(&[EOPNOTSUPP, EOPNOTSUPP]);
    let device = Device::take_over(&control, found(abi::STATE_QUIESCED), RECOVERY_MAX).unwrap().unwrap();
    assert!(device.is_recovered && !device.is_torn);
    // One of two queues is served: the other one is served as well, and the device is left to the next daemon.
    for torn in [[EINVAL, EOPNOTSUPP], [EBUSY, EINVAL]] {
        script.expect_queues(&torn);
        let device = Device::take_over(&control, found(abi::STATE_QUIESCED), RECOVERY_MAX).unwrap().unwrap();
        assert!(device.is_recovered && device.is_torn);
        let error = opening_of(device, &[ACCEPTED, ACCEPTED]).begin(&control).unwrap_err();
        assert!(error.kind == UblkErrorKind::Busy && error.remedy.contains("restart the daemon"), "{error}");
    }
    // Its last server does not end.
    script.expect_queues(&[]);
    let error = Device::take_over(&control, found(abi::STATE_QUIESCED), Duration::ZERO).unwrap_err();
    assert_eq!(error.kind, UblkErrorKind::Busy);
    assert!(script.is_over());

    // From 6.13 on a second beginning does no harm where no queue is served; from 6.16 on it never does.
    let newer = |flags: u64| {
        script.expect(abi::GET_FEATURES, true, Ok(0), &(flags | abi::F_CMD_IOCTL_ENCODE).to_ne_bytes());
        Control::of(Box::new(script.clone())).unwrap()
    };
    for (flags, queues) in [(abi::F_USER_RECOVERY_FAIL_IO, Some(&[EOPNOTSUPP, EOPNOTSUPP])), (abi::F_QUIESCE, None)] {
        let control = newer(flags);
        queues.into_iter().for_each(|queues| script.expect_queues(queues));
        script.expect(abi::START_USER_RECOVERY, true, Ok(0), &[]);
        assert!(Device::take_over(&control, found(abi::STATE_QUIESCED), RECOVERY_MAX).unwrap().is_some());
        assert!(script.is_over());
    }
}

#[test]
fn an_opening_waits_for_room_on_all_shards() {
    let all = [Asked::default(), Asked::default()];
    all[0].reply(true);
    all[1].reply(false);
    let error = Asked::wait_for_room(&all).unwrap_err();
    assert!(error.kind == UblkErrorKind::Limit && error.context.contains("1 of the 2 shards"), "{error}");
    all[1].reply(true);
    Asked::wait_for_room(&all).unwrap();
    assert_eq!(Asked::wait(&[&Asked::default()], Duration::ZERO), Err(1), "a shard that does not reply");
}

#[test]
fn an_open_device_is_removed_without_waiting() {
    let (script, control) = modern();
    script.expect(abi::DEL_DEV_ASYNC, true, Ok(0), &[]);
    control.delete(3).unwrap();
    script.expect(abi::DEL_DEV_ASYNC, true, Err(EBUSY), &[]);
    assert_eq!(control.delete(3).unwrap_err().kind, UblkErrorKind::Busy);
    // A driver without DEL_DEV_ASYNC.
    script.expect(abi::DEL_DEV_ASYNC, true, Err(EOPNOTSUPP), &[]);
    script.expect(abi::DEL_DEV, true, Err(EBUSY), &[]);
    assert_eq!(control.delete(3).unwrap_err().kind, UblkErrorKind::Busy);
    // A driver without encoded numbers, which waits until the device is closed.
    script.expect(abi::GET_FEATURES, true, Err(EINVAL), &[]);
    let old = Control::of(Box::new(script.clone())).unwrap();
    script.expect(abi::DEL_DEV, false, Ok(0), &[]);
    let opener = script.hold();
    let begun = Instant::now();
    old.delete(3).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20), "the removal does not wait");
    drop(opener);
    let until = Instant::now() + Duration::from_secs(20);
    while !script.is_over() && Instant::now() < until {
        thread::sleep(PAUSE);
    }
    assert!(script.is_over(), "the removal completes in the background");
}

#[test]
fn a_size_is_changed_where_the_driver_can() {
    let (script, control) = modern();
    assert!(!control.update_size(3, 1 << 20).unwrap(), "an older driver gets no command");
    let all = abi::F_UPDATE_SIZE | abi::F_CMD_IOCTL_ENCODE;
    script.expect(abi::GET_FEATURES, true, Ok(0), &all.to_ne_bytes());
    let newer = Control::of(Box::new(script.clone())).unwrap();
    script.expect(abi::UPDATE_SIZE, true, Ok(0), &[]);
    assert!(newer.update_size(3, 1 << 20).unwrap());
    assert_eq!(script.last_data(), (1 << 20) / 512, "in sectors");
    script.expect(abi::UPDATE_SIZE, true, Err(EINVAL), &[]);
    assert!(newer.update_size(3, 1 << 20).is_err() && script.is_over());
}

#[test]
fn a_device_that_never_started_is_removed_and_one_of_another_server_is_refused() {
    let (script, control) = modern();
    script.expect(abi::DEL_DEV_ASYNC, true, Ok(0), &[]);
    assert!(Device::take_over(&control, found(abi::STATE_DEAD), RECOVERY_MAX).unwrap().is_none());
    script.expect(abi::START_USER_RECOVERY, true, Err(EBUSY), &[]);
    let error = Device::take_over(&control, found(abi::STATE_LIVE), Duration::ZERO).unwrap_err();
    assert!(error.kind == UblkErrorKind::Busy && error.context.contains("process 99"), "{error}");
    assert!(script.is_over());
}
