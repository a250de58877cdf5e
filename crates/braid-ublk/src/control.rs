//! What is said to `/dev/ublk-control`.
//!
//! Each command is one call that blocks until the driver has carried it out: some of them wait for the shards. They are for the
//! control plane's threads. [`Speak`] is the seam: tests stand a driver of their own behind it.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{self, ControlCommand, ControlOp, DeviceInfo, IoCommand, Params};
use crate::error::{UblkError, UblkErrorKind};

/// The driver's control device.
pub const CONTROL_PATH: &str = "/dev/ublk-control";

/// After so long a command counts as failed. A start waits for all shards, a stop for all requests.
const COMMAND_MAX: Duration = Duration::from_secs(30);

/// So long it is waited for a removal that may wait for others: what refuses it is known at once.
const REMOVAL_MAX: Duration = Duration::from_secs(1);

/// What the driver returned.
pub type Answer = io::Result<i32>;

/// Whoever carries commands out: the driver, or a test.
pub trait Speak: Send + Sync {
    /// One command with what goes in or comes out at its address.
    ///
    /// # Errors
    /// What the driver refused it with.
    fn speak(&self, code: u32, command: ControlCommand, data: &mut [u8]) -> Answer;

    /// What each of a device's queues answers to a command that it does not know.
    ///
    /// # Errors
    /// The device's own file cannot be opened: somebody has it.
    fn speak_to_queues(&self, id: u32, queues: u16) -> io::Result<Vec<Answer>>;
}

/// The real one.
struct Driver(File);

impl Speak for Driver {
    fn speak(&self, code: u32, command: ControlCommand, data: &mut [u8]) -> Answer {
        let mut own = data.to_vec();
        let command = ControlCommand { addr: own.as_mut_ptr() as u64, len: own.len() as u16, ..command };
        let mut payload = [0; braid_ring::COMMAND_BYTES_MAX];
        payload[..size_of::<ControlCommand>()].copy_from_slice(command.as_bytes());
        // SAFETY: the driver reads and writes `len` bytes at `addr`, which are those of `own`; bytes have no invalid values. Should the
        // driver not have ended, that memory is never given back.
        let answer = unsafe { braid_ring::command(self.0.as_fd(), code, &payload, COMMAND_MAX) };
        match &answer {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => std::mem::forget(own),
            _ => data.copy_from_slice(&own),
        }
        answer
    }

    fn speak_to_queues(&self, id: u32, queues: u16) -> io::Result<Vec<Answer>> {
        let file = File::options().read(true).write(true).open(format!("/dev/ublkc{id}"))?;
        let ask = |q_id: u16| {
            let mut payload = [0; braid_ring::COMMAND_BYTES_MAX];
            payload[..size_of::<IoCommand>()].copy_from_slice(IoCommand { q_id, ..IoCommand::default() }.as_bytes());
            // SAFETY: a command that no driver knows names no memory.
            unsafe { braid_ring::command(file.as_fd(), abi::NO_COMMAND, &payload, COMMAND_MAX) }
        };
        Ok((0..queues).map(ask).collect())
    }
}

/// How much of a device without a server is served in the driver's eyes, which takes a server that is gone for one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// All queues; or nobody can say, and it is as it should be.
    All,
    /// None: a takeover was begun.
    Nothing,
    /// A takeover was begun, and ended when some queues had a server.
    Some,
}

/// What this kernel's driver can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Flags of [`abi`]; none: the driver is older than the question (before Linux 6.5).
    pub flags: Option<u64>,
}

impl Features {
    /// Whether commands have the encoded numbers.
    pub fn is_encoded(&self) -> bool {
        self.flags.is_some()
    }

    /// What people read.
    pub fn words(&self) -> Vec<&'static str> {
        let flags = self.flags.unwrap_or(0);
        abi::FLAG_NAMES.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, word)| *word).collect()
    }
}

/// The control device, and what its driver can do.
pub struct Control {
    to: Arc<dyn Speak>,
    features: Features,
}

impl Control {
    /// Opens the control device and asks what it can do.
    ///
    /// # Errors
    /// The driver is not there, or may not be used.
    pub fn open() -> Result<Control, UblkError> {
        let file = File::options().read(true).write(true).open(CONTROL_PATH);
        let file = file.map_err(|error| UblkError::no_control(error, CONTROL_PATH))?;
        Control::of(Box::new(Driver(file)))
    }

    /// The same with whoever answers.
    ///
    /// # Errors
    /// It may not be used.
    pub fn of(to: Box<dyn Speak>) -> Result<Control, UblkError> {
        let mut flags = [0; 8];
        let command = ControlCommand { dev_id: abi::ANY_DEVICE, queue_id: abi::NO_QUEUE, ..ControlCommand::default() };
        let features = match to.speak(abi::GET_FEATURES.code(true), command, &mut flags) {
            Ok(_) => Features { flags: Some(u64::from_ne_bytes(flags)) },
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(UblkError::os(error, "asking the ublk driver what it can do"));
            }
            // Drivers before the question refuse it, one way or another.
            Err(_) => Features { flags: None },
        };
        Ok(Control { to: Arc::from(to), features })
    }

    /// What the driver can do.
    pub fn features(&self) -> Features {
        self.features
    }

    fn say(&self, op: ControlOp, dev_id: u32, data: u64, bytes: &mut [u8]) -> Answer {
        let command = ControlCommand { dev_id, queue_id: abi::NO_QUEUE, data, ..ControlCommand::default() };
        self.to.speak(op.code(self.features.is_encoded()), command, bytes)
    }

    fn plain(&self, op: ControlOp, id: u32, data: u64) -> Result<(), UblkError> {
        let answer = self.say(op, id, data, &mut []);
        answer.map(|_| ()).map_err(|error| UblkError::os(error, &format!("{} of /dev/ublkb{id}", op.name)))
    }

    /// Adds a device like `wanted`; returns what it became.
    ///
    /// # Errors
    /// The driver refuses, or cannot do what is needed.
    pub fn add(&self, wanted: &DeviceInfo) -> Result<DeviceInfo, UblkError> {
        let mut info = *wanted;
        self.say(abi::ADD_DEV, wanted.dev_id, 0, info.as_mut_bytes()).map_err(|error| match error.raw_os_error() {
            Some(numbers::ENOMEM) => UblkError::new(
                UblkErrorKind::Limit,
                format!("there is no memory for {} queues of {} requests", wanted.nr_hw_queues, wanted.queue_depth),
                "ask for fewer with --queues and --depth",
            ),
            _ => UblkError::os(error, "adding a ublk device"),
        })?;
        Ok(info)
    }

    /// Sets a new device's parameters.
    ///
    /// # Errors
    /// The driver refuses them.
    pub fn set_params(&self, id: u32, params: &Params) -> Result<(), UblkError> {
        let mut params = *params;
        let answer = self.say(abi::SET_PARAMS, id, 0, params.as_mut_bytes());
        answer.map(|_| ()).map_err(|error| UblkError::os(error, &format!("setting the limits of /dev/ublkb{id}")))
    }

    /// Shows a device to users. Waits for all of its queues.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn start(&self, id: u32) -> Result<(), UblkError> {
        self.plain(abi::START_DEV, id, u64::from(std::process::id()))
    }

    /// Gives a device another size, of which its users are told; false: this driver cannot.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn update_size(&self, id: u32, size_bytes: u64) -> Result<bool, UblkError> {
        if self.features.flags.unwrap_or(0) & abi::F_UPDATE_SIZE == 0 {
            return Ok(false);
        }
        self.plain(abi::UPDATE_SIZE, id, size_bytes / abi::SECTOR_BYTES).map(|()| true)
    }

    /// Takes a device from its users: what they ask fails from now on.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn stop(&self, id: u32) -> Result<(), UblkError> {
        self.plain(abi::STOP_DEV, id, 0)
    }

    /// Removes a device that was stopped, or never started. It is gone at once for whoever looks for it; the kernel keeps what is left of it for as
    /// long as somebody has it open.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn delete(&self, id: u32) -> Result<(), UblkError> {
        if self.features.is_encoded() {
            match self.say(abi::DEL_DEV_ASYNC, id, 0, &mut []) {
                // Drivers before Linux 6.9 do not know it.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                answer => {
                    let failed =
                        |error| UblkError::os(error, &format!("{} of /dev/ublkb{id}", abi::DEL_DEV_ASYNC.name));
                    return answer.map(|_| ()).map_err(failed);
                }
            }
        }
        self.delete_aside(id)
    }

    /// The same where the driver waits for all that have the device open: it does so on a thread of its own. What has begun goes on in the
    /// kernel, also when that thread has given up.
    fn delete_aside(&self, id: u32) -> Result<(), UblkError> {
        let doing = format!("{} of /dev/ublkb{id}", abi::DEL_DEV.name);
        let (to, code) = (Arc::clone(&self.to), abi::DEL_DEV.code(self.features.is_encoded()));
        let (tell, told) = mpsc::channel();
        let removal = move || {
            let command = ControlCommand { dev_id: id, queue_id: abi::NO_QUEUE, ..ControlCommand::default() };
            // Nobody may be waiting for it any more.
            let _ = tell.send(to.speak(code, command, &mut []));
        };
        let begun = thread::Builder::new().name("removal".to_owned()).spawn(removal);
        begun.map_err(|error| UblkError::os(error, &doing))?;
        match told.recv_timeout(REMOVAL_MAX) {
            Ok(answer) => answer.map(|_| ()).map_err(|error| UblkError::os(error, &doing)),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => Err(UblkError::os(io::ErrorKind::BrokenPipe.into(), &doing)),
        }
    }

    /// What a device is; none: there is no such device.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn info(&self, id: u32) -> Result<Option<DeviceInfo>, UblkError> {
        let mut bytes = [0; size_of::<DeviceInfo>()];
        match self.say(abi::GET_DEV_INFO, id, 0, &mut bytes) {
            Ok(_) => Ok(DeviceInfo::read_from_bytes(&bytes).ok()),
            Err(error) if error.raw_os_error() == Some(numbers::ENODEV) => Ok(None),
            Err(error) => Err(UblkError::os(error, &format!("asking what /dev/ublkb{id} is"))),
        }
    }

    /// Begins to take over a device whose server is gone; false: the kernel has not yet noticed that, or not ended with it.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn start_recovery(&self, id: u32) -> Result<bool, UblkError> {
        match self.say(abi::START_USER_RECOVERY, id, 0, &mut []) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(false),
            Err(error) => Err(UblkError::os(error, &format!("taking over /dev/ublkb{id}"))),
        }
    }

    /// How much of a device without a server is served; none: it cannot be asked yet, as its last server has not quite ended. Drivers before Linux
    /// 6.16 forget what served a queue only when a takeover begins, and fall over (before 6.10: always) one that is begun anew with a
    /// queue that nobody has served since. Later ones forget it when a server ends, and are not asked.
    ///
    /// # Errors
    /// The device's own file cannot be opened.
    pub(crate) fn served(&self, device: &DeviceInfo) -> Result<Option<Served>, UblkError> {
        let Some(flags) = self.features.flags.filter(|flags| flags & abi::F_QUIESCE == 0) else {
            return Ok(Some(Served::All));
        };
        let answers = match self.to.speak_to_queues(device.dev_id, device.nr_hw_queues) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => return Ok(None),
            answers => {
                answers.map_err(|error| UblkError::os(error, &format!("opening /dev/ublkc{}", device.dev_id)))?
            }
        };
        let has_said = |what: &[i32]| {
            let numbers = answers.iter().map(|answer| answer.as_ref().err().and_then(io::Error::raw_os_error));
            numbers.filter(|number| number.is_some_and(|number| what.contains(&number))).count()
        };
        // Busy: some of its requests are waited for, by a server that never got to all of them.
        let (with, without) = (has_said(&[libc::EINVAL]), has_said(&[libc::EOPNOTSUPP, libc::EBUSY]));
        Ok(Some(match (with, without) {
            (1.., 1..) => Served::Some,
            // From 6.13 on a beginning is refused, or harmless, and some of these forget as later ones do: they are asked to begin.
            (0, 1..) if flags & abi::F_USER_RECOVERY_FAIL_IO == 0 => Served::Nothing,
            _ => Served::All,
        }))
    }

    /// Lets the users of a device go on. Waits for all of its queues.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn end_recovery(&self, id: u32) -> Result<(), UblkError> {
        self.plain(abi::END_USER_RECOVERY, id, u64::from(std::process::id()))
    }
}

/// Error numbers of Linux that std has no kind for.
mod numbers {
    pub const ENOMEM: i32 = 12;
    pub const ENODEV: i32 = 19;
}
