//! The life of a device against a driver that this file plays.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use zerocopy::IntoBytes;

use super::*;
use crate::abi::{ControlCommand, ControlOp};
use crate::control::{Answer, Speak};

/// One command that is expected: which, what it returns, and what it writes.
type Line = (ControlOp, bool, Result<i32, i32>, Vec<u8>);

/// What is to come, the number in the last command, and what is held while a driver waits.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<VecDeque<Line>>>, Arc<Mutex<u64>>, Arc<Mutex<()>>);

impl Script {
    fn expect(&self, op: ControlOp, encoded: bool, answer: Result<i32, i32>, out: &[u8]) {
        self.0.lock().unwrap().push_back((op, encoded, answer, out.to_vec()));
    }

    fn last_data(&self) -> u64 {
        *self.1.lock().unwrap()
    }

    /// No command ends before this is dropped.
    fn hold(&self) -> MutexGuard<'_, ()> {
        self.2.lock().unwrap()
    }

    fn is_over(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}

impl Speak for Script {
    fn speak(&self, code: u32, command: ControlCommand, data: &mut [u8]) -> Answer {
        drop(self.hold());
        *self.1.lock().unwrap() = command.data;
        let (op, encoded, answer, out) = self.0.lock().unwrap().pop_front().expect("a command that nobody expects");
        assert_eq!(code, op.code(encoded), "{} was expected", op.name);
        data[..out.len()].copy_from_slice(&out);
        answer.map_err(io::Error::from_raw_os_error)
    }
}

const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;
const EOPNOTSUPP: i32 = 95;

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
fn a_driver_without_the_question_gets_the_old_numbers() {
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
fn a_device_is_made_with_its_limits() {
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
fn a_driver_that_cannot_do_it_is_left_clean() {
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
fn a_device_is_known_by_its_mark() {
    let (script, control) = modern();
    let other = DeviceInfo { ublksrv_flags: 8, ..found(abi::STATE_LIVE) };
    script.expect(abi::GET_DEV_INFO, true, Ok(0), other.as_bytes());
    script.expect(abi::GET_DEV_INFO, true, Err(19), &[]);
    script.expect(abi::GET_DEV_INFO, true, Ok(0), found(abi::STATE_QUIESCED).as_bytes());
    let device = Device::find_among(&control, 7, &[0, 1, 3]).unwrap();
    assert_eq!(device, Some(found(abi::STATE_QUIESCED)));
}

#[test]
fn one_that_lost_its_server_is_taken_over_once_the_kernel_has_ended_with_that() {
    let (script, control) = modern();
    script.expect(abi::START_USER_RECOVERY, true, Err(EBUSY), &[]);
    script.expect(abi::START_USER_RECOVERY, true, Ok(0), &[]);
    let device = Device::take_over(&control, found(abi::STATE_QUIESCED), RECOVERY_MAX).unwrap().unwrap();
    assert!(device.is_recovered);
    let mut opening = taken(device, &[TAKEN, TAKEN]);
    script.expect(abi::END_USER_RECOVERY, true, Ok(0), &[]);
    opening.begin(&control).unwrap();
    // Once is enough.
    opening.begin(&control).unwrap();
    assert!(script.is_over());
}

/// A device on its way, with what its shards have said.
fn taken(device: Device, queues: &[u8]) -> Opening {
    let opening = Opening::of(device);
    opening.taken.iter().zip(queues).for_each(|(taken, what)| taken.store(*what, Ordering::Release));
    opening
}

#[test]
fn a_takeover_that_failed_half_way_goes_on_from_there() {
    let (script, control) = modern();
    let device = Device { id: 3, info: found(abi::STATE_QUIESCED), is_recovered: true };
    let mut opening = taken(device, &[TAKEN, REFUSED]);
    // The driver is asked for nothing that it would wait for.
    let error = opening.begin(&control).unwrap_err();
    assert!(error.kind == UblkErrorKind::Limit && error.context.contains("1 of the 2 queues"), "{error}");
    opening.taken[1].store(TAKEN, Ordering::Release);
    script.expect(abi::END_USER_RECOVERY, true, Err(EBUSY), &[]);
    script.expect(abi::GET_DEV_INFO, true, Ok(0), found(abi::STATE_QUIESCED).as_bytes());
    assert_eq!(opening.begin(&control).unwrap_err().kind, UblkErrorKind::Busy);
    // What was asked before has come to its end.
    let live = DeviceInfo { ublksrv_pid: std::process::id() as i32, ..found(abi::STATE_LIVE) };
    script.expect(abi::END_USER_RECOVERY, true, Err(EBUSY), &[]);
    script.expect(abi::GET_DEV_INFO, true, Ok(0), live.as_bytes());
    opening.begin(&control).unwrap();
    assert!(script.is_over());
}

#[test]
fn a_device_that_somebody_has_open_is_removed_without_waiting() {
    let (script, control) = modern();
    script.expect(abi::DEL_DEV_ASYNC, true, Ok(0), &[]);
    control.delete(3).unwrap();
    script.expect(abi::DEL_DEV_ASYNC, true, Err(EBUSY), &[]);
    assert_eq!(control.delete(3).unwrap_err().kind, UblkErrorKind::Busy);
    // A driver that does not know it.
    script.expect(abi::DEL_DEV_ASYNC, true, Err(EOPNOTSUPP), &[]);
    script.expect(abi::DEL_DEV, true, Err(EBUSY), &[]);
    assert_eq!(control.delete(3).unwrap_err().kind, UblkErrorKind::Busy);
    // And one that has not even the numbers of it; it waits for who has the device open.
    script.expect(abi::GET_FEATURES, true, Err(EINVAL), &[]);
    let old = Control::of(Box::new(script.clone())).unwrap();
    script.expect(abi::DEL_DEV, false, Ok(0), &[]);
    let opener = script.hold();
    let begun = Instant::now();
    old.delete(3).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20), "it did not wait");
    drop(opener);
    let until = Instant::now() + Duration::from_secs(20);
    while !script.is_over() && Instant::now() < until {
        thread::sleep(PAUSE);
    }
    assert!(script.is_over(), "it goes on by itself");
}

#[test]
fn a_size_is_changed_where_the_driver_can() {
    let (script, control) = modern();
    assert!(!control.update_size(3, 1 << 20).unwrap(), "nothing is asked of an older one");
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
fn one_that_never_started_is_removed_and_one_of_another_server_refused() {
    let (script, control) = modern();
    script.expect(abi::DEL_DEV_ASYNC, true, Ok(0), &[]);
    assert!(Device::take_over(&control, found(abi::STATE_DEAD), RECOVERY_MAX).unwrap().is_none());
    script.expect(abi::START_USER_RECOVERY, true, Err(EBUSY), &[]);
    let error = Device::take_over(&control, found(abi::STATE_LIVE), Duration::ZERO).unwrap_err();
    assert!(error.kind == UblkErrorKind::Busy && error.context.contains("process 99"), "{error}");
    assert!(script.is_over());
}
