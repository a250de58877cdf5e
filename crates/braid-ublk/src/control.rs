//! Commands to `/dev/ublk-control`.
//!
//! Each command is one call that blocks until the driver has executed it. Some commands wait for the shards, so they
//! must be called on threads of the control plane only. Tests replace the driver by an implementation of [`Speak`].

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

/// Time after which a command counts as failed. A start waits for all shards, a stop for all requests.
const COMMAND_MAX: Duration = Duration::from_secs(30);

/// Longest wait for a removal that the driver may delay until the device is closed; a refusal arrives at once.
const REMOVAL_MAX: Duration = Duration::from_secs(1);

/// The driver's result of a command: its return value, or its error number.
pub type Answer = io::Result<i32>;

/// Carries commands out: the driver, or a test.
pub trait Speak: Send + Sync {
    /// Carries out one command; `data` is the input or the output at its address.
    ///
    /// # Errors
    /// The error number of the driver.
    fn speak(&self, code: u32, command: ControlCommand, data: &mut [u8]) -> Answer;

    /// Sends [`abi::NO_COMMAND`] to each queue of a device, and returns the results, by queue number. They show which
    /// queues the driver considers served.
    ///
    /// # Errors
    /// The device's own file cannot be opened, for example as another process has it open.
    fn speak_to_queues(&self, id: u32, queues: u16) -> io::Result<Vec<Answer>>;
}

/// The kernel's driver.
struct Driver(File);

impl Speak for Driver {
    fn speak(&self, code: u32, command: ControlCommand, data: &mut [u8]) -> Answer {
        let mut own = data.to_vec();
        let command = ControlCommand { addr: own.as_mut_ptr() as u64, len: own.len() as u16, ..command };
        let mut payload = [0; braid_ring::COMMAND_BYTES_MAX];
        payload[..size_of::<ControlCommand>()].copy_from_slice(command.as_bytes());
        // SAFETY: the driver reads and writes `len` bytes at `addr`, which are those of `own`; bytes have no invalid values. If the
        // driver has not ended in time, that memory is never freed.
        let answer = unsafe { braid_ring::command(self.0.as_fd(), code, &payload, COMMAND_MAX) };
        match &answer {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => std::mem::forget(own),
            _ => data.copy_from_slice(&own),
        }
        answer
    }

    fn speak_to_queues(&self, id: u32, queues: u16) -> io::Result<Vec<Answer>> {
        let file = File::options().read(true).write(true).open(format!("/dev/ublkc{id}"))?;
        let probe = |q_id: u16| {
            let mut payload = [0; braid_ring::COMMAND_BYTES_MAX];
            payload[..size_of::<IoCommand>()].copy_from_slice(IoCommand { q_id, ..IoCommand::default() }.as_bytes());
            // SAFETY: a command that no driver implements names no memory.
            unsafe { braid_ring::command(file.as_fd(), abi::NO_COMMAND, &payload, COMMAND_MAX) }
        };
        Ok((0..queues).map(probe).collect())
    }
}

/// Which queues of a device without a server the driver still considers served: it forgets a queue's server only at a
/// takeover, or when the server ends, depending on its version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ServedQueues {
    /// All queues, or this driver needs no check. A takeover can begin.
    All,
    /// None: a takeover has begun.
    None,
    /// Some queues: a takeover has begun, and the daemon that began it ended when it served only some of them.
    Partial,
}

/// The features of this kernel's driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// `F_…` of [`abi`]; `None`: the driver is older than GET_FEATURES (before Linux 6.5).
    pub flags: Option<u64>,
}

impl Features {
    /// Whether commands have ioctl-encoded numbers.
    pub fn is_encoded(&self) -> bool {
        self.flags.is_some()
    }

    /// Returns the names of the features for users.
    pub fn words(&self) -> Vec<&'static str> {
        let flags = self.flags.unwrap_or(0);
        abi::FLAG_NAMES.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, word)| *word).collect()
    }
}

/// The control device and its driver's features.
pub struct Control {
    driver: Arc<dyn Speak>,
    features: Features,
}

impl Control {
    /// Opens the control device and reads the driver's features.
    ///
    /// # Errors
    /// The driver is not loaded, or may not be used.
    pub fn open() -> Result<Control, UblkError> {
        let file = File::options().read(true).write(true).open(CONTROL_PATH);
        let file = file.map_err(|error| UblkError::no_control(error, CONTROL_PATH))?;
        Control::of(Box::new(Driver(file)))
    }

    /// Creates one on a driver, or on a test's replacement of it, and reads its features.
    ///
    /// # Errors
    /// The driver may not be used.
    pub fn of(driver: Box<dyn Speak>) -> Result<Control, UblkError> {
        let mut flags = [0; 8];
        let command = ControlCommand { dev_id: abi::ANY_DEVICE, queue_id: abi::NO_QUEUE, ..ControlCommand::default() };
        let features = match driver.speak(abi::GET_FEATURES.code(true), command, &mut flags) {
            Ok(_) => Features { flags: Some(u64::from_ne_bytes(flags)) },
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(UblkError::os(error, "asking the ublk driver what it can do"));
            }
            // Older drivers refuse the command with various errors.
            Err(_) => Features { flags: None },
        };
        Ok(Control { driver: Arc::from(driver), features })
    }

    /// Returns the driver's features.
    pub fn features(&self) -> Features {
        self.features
    }

    fn send(&self, op: ControlOp, dev_id: u32, data: u64, bytes: &mut [u8]) -> Answer {
        let command = ControlCommand { dev_id, queue_id: abi::NO_QUEUE, data, ..ControlCommand::default() };
        self.driver.speak(op.code(self.features.is_encoded()), command, bytes)
    }

    fn send_plain(&self, op: ControlOp, id: u32, data: u64) -> Result<(), UblkError> {
        let result = self.send(op, id, data, &mut []);
        result.map(|_| ()).map_err(|error| UblkError::os(error, &format!("{} of /dev/ublkb{id}", op.name)))
    }

    /// Adds a device like `wanted` and returns its description.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn add(&self, wanted: &DeviceInfo) -> Result<DeviceInfo, UblkError> {
        let mut info = *wanted;
        self.send(abi::ADD_DEV, wanted.dev_id, 0, info.as_mut_bytes()).map_err(|error| match error.raw_os_error() {
            Some(errno::ENOMEM) => UblkError::new(
                UblkErrorKind::Limit,
                format!("there is no memory for {} queues of {} requests", wanted.nr_hw_queues, wanted.queue_depth),
                "ask for fewer with --queues and --depth",
            ),
            _ => UblkError::os(error, "adding a ublk device"),
        })?;
        Ok(info)
    }

    /// Sets the parameters of a device that was not started.
    ///
    /// # Errors
    /// The driver refuses them.
    pub fn set_params(&self, id: u32, params: &Params) -> Result<(), UblkError> {
        let mut params = *params;
        let result = self.send(abi::SET_PARAMS, id, 0, params.as_mut_bytes());
        result.map(|_| ()).map_err(|error| UblkError::os(error, &format!("setting the limits of /dev/ublkb{id}")))
    }

    /// Makes a device visible to users. Waits until all of its queues are served.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn start(&self, id: u32) -> Result<(), UblkError> {
        self.send_plain(abi::START_DEV, id, u64::from(std::process::id()))
    }

    /// Changes the size of a device, which the kernel reports to its users; false: this driver cannot change it.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn update_size(&self, id: u32, size_bytes: u64) -> Result<bool, UblkError> {
        if self.features.flags.unwrap_or(0) & abi::F_UPDATE_SIZE == 0 {
            return Ok(false);
        }
        self.send_plain(abi::UPDATE_SIZE, id, size_bytes / abi::SECTOR_BYTES).map(|()| true)
    }

    /// Takes a device from its users: their requests fail from now on.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn stop(&self, id: u32) -> Result<(), UblkError> {
        self.send_plain(abi::STOP_DEV, id, 0)
    }

    /// Removes a device that was stopped, or never started. It cannot be found any longer, and the kernel frees it when no process
    /// has it open.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn delete(&self, id: u32) -> Result<(), UblkError> {
        if self.features.is_encoded() {
            match self.send(abi::DEL_DEV_ASYNC, id, 0, &mut []) {
                // Drivers before Linux 6.9 do not implement it.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                result => {
                    let failed =
                        |error| UblkError::os(error, &format!("{} of /dev/ublkb{id}", abi::DEL_DEV_ASYNC.name));
                    return result.map(|_| ()).map_err(failed);
                }
            }
        }
        self.delete_in_thread(id)
    }

    /// Removes a device by the command that waits until no process has it open, on a thread of its own. Returns after
    /// [`REMOVAL_MAX`] even if the command has not ended: the kernel completes a removal that it has begun.
    fn delete_in_thread(&self, id: u32) -> Result<(), UblkError> {
        let doing = format!("{} of /dev/ublkb{id}", abi::DEL_DEV.name);
        let (driver, code) = (Arc::clone(&self.driver), abi::DEL_DEV.code(self.features.is_encoded()));
        let (sender, receiver) = mpsc::channel();
        let removal = move || {
            let command = ControlCommand { dev_id: id, queue_id: abi::NO_QUEUE, ..ControlCommand::default() };
            // The caller may have stopped waiting.
            let _ = sender.send(driver.speak(code, command, &mut []));
        };
        let begun = thread::Builder::new().name("removal".to_owned()).spawn(removal);
        begun.map_err(|error| UblkError::os(error, &doing))?;
        match receiver.recv_timeout(REMOVAL_MAX) {
            Ok(result) => result.map(|_| ()).map_err(|error| UblkError::os(error, &doing)),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => Err(UblkError::os(io::ErrorKind::BrokenPipe.into(), &doing)),
        }
    }

    /// Returns the description of a device; `None`: no such device exists.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn info(&self, id: u32) -> Result<Option<DeviceInfo>, UblkError> {
        let mut bytes = [0; size_of::<DeviceInfo>()];
        match self.send(abi::GET_DEV_INFO, id, 0, &mut bytes) {
            Ok(_) => Ok(DeviceInfo::read_from_bytes(&bytes).ok()),
            Err(error) if error.raw_os_error() == Some(errno::ENODEV) => Ok(None),
            Err(error) => Err(UblkError::os(error, &format!("asking what /dev/ublkb{id} is"))),
        }
    }

    /// Begins to take over a device whose server has ended; false: the kernel has not noticed that yet, or is still cleaning up.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn start_recovery(&self, id: u32) -> Result<bool, UblkError> {
        match self.send(abi::START_USER_RECOVERY, id, 0, &mut []) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(false),
            Err(error) => Err(UblkError::os(error, &format!("taking over /dev/ublkb{id}"))),
        }
    }

    /// Returns which queues of a device without a server the driver considers served; `None`: the device cannot be
    /// probed yet, because its last server has not fully ended.
    ///
    /// Drivers before Linux 6.16 forget a queue's server only when a takeover begins. Such a driver may crash the
    /// kernel (before 6.10 it always does) if a takeover is begun again while a queue has not been served since the
    /// last beginning. Drivers from 6.16 on forget the server when it ends, and are not probed.
    ///
    /// # Errors
    /// The device's own file cannot be opened.
    pub(crate) fn served_queues(&self, device: &DeviceInfo) -> Result<Option<ServedQueues>, UblkError> {
        let Some(flags) = self.features.flags.filter(|flags| flags & abi::F_QUIESCE == 0) else {
            return Ok(Some(ServedQueues::All));
        };
        let results = match self.driver.speak_to_queues(device.dev_id, device.nr_hw_queues) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => return Ok(None),
            results => {
                results.map_err(|error| UblkError::os(error, &format!("opening /dev/ublkc{}", device.dev_id)))?
            }
        };
        let count = |wanted: &[i32]| {
            let numbers = results.iter().map(|result| result.as_ref().err().and_then(io::Error::raw_os_error));
            numbers.filter(|number| number.is_some_and(|number| wanted.contains(&number))).count()
        };
        // The probe's error. EINVAL: the queue has or had a server. EOPNOTSUPP: it has none. EBUSY: a server has
        // fetched some of the queue's requests, but never all of them, which counts as not served.
        let (with, without) = (count(&[libc::EINVAL]), count(&[libc::EOPNOTSUPP, libc::EBUSY]));
        Ok(Some(match (with, without) {
            (1.., 1..) => ServedQueues::Partial,
            // No queue is served, so before Linux 6.13 a takeover has begun. From 6.13 on it may not have, because some
            // of these drivers forget servers when they end; a second beginning is refused or harmless there: begin
            // one.
            (0, 1..) if flags & abi::F_USER_RECOVERY_FAIL_IO == 0 => ServedQueues::None,
            _ => ServedQueues::All,
        }))
    }

    /// Ends a takeover: the users of the device go on. Waits until all of its queues are served.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn end_recovery(&self, id: u32) -> Result<(), UblkError> {
        self.send_plain(abi::END_USER_RECOVERY, id, u64::from(std::process::id()))
    }
}

/// Error numbers of Linux without an [`io::ErrorKind`].
mod errno {
    pub const ENOMEM: i32 = 12;
    pub const ENODEV: i32 = 19;
}
