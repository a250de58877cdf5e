//! Open disks: what a [`DiskSpec`] names, held exclusively, ready to be added to the shards.

pub mod freeze;

use std::ops::Deref;
use std::sync::Arc;

use braid_engine::DeviceId;

use crate::error::RingError;
use crate::medium::{Base, Medium};
pub use crate::medium::{OpenOptions, holder_of};
use crate::remote::RemoteDisk;
use crate::spec::DiskSpec;
use crate::stack_level::{STACK_LEVELS_MAX, stack_level_of};

/// An open disk. It is closed, and its lock released, when it is dropped and no shard has it any more.
pub struct Disk {
    medium: Arc<Medium>,
    /// The interface of a remote disk.
    remote: Option<Arc<dyn RemoteDisk>>,
}

impl Deref for Disk {
    type Target = Medium;

    fn deref(&self) -> &Medium {
        &self.medium
    }
}

impl Disk {
    /// Opens the disk that `spec` names. Creates a missing file if the name gives a size.
    ///
    /// # Errors
    /// Names the disk, the operation, the reason, the holder if it is known, and a remedy.
    pub fn open(spec: &DiskSpec, options: OpenOptions) -> Result<Disk, RingError> {
        Medium::open(spec, options).map(Disk::local)
    }

    fn local(medium: Medium) -> Disk {
        Disk { medium: Arc::new(medium), remote: None }
    }

    /// Returns a disk that is a device of the shards: a volume, as a member of an array of the stack level above. The
    /// caller ensures that the device has no other user and exists as long as this disk is open.
    ///
    /// # Panics
    /// When the device is of the last stack level.
    pub fn from_device(spec: &DiskSpec, device: DeviceId, size_bytes: u64) -> Disk {
        assert!(stack_level_of(device) + 1 < STACK_LEVELS_MAX, "there is a level above");
        Disk::local(Medium::of_base(spec, Base::Device(device), size_bytes, true))
    }

    /// Returns a disk for a remote disk that was connected.
    pub fn from_remote(spec: &DiskSpec, remote: Arc<dyn RemoteDisk>, write: bool) -> Disk {
        let size_bytes = remote.size_bytes();
        let base = Base::Remote { _interface: Box::new(Arc::clone(&remote)) };
        Disk { medium: Arc::new(Medium::of_base(spec, base, size_bytes, write)), remote: Some(remote) }
    }

    /// Returns the part of the disk that each shard holds while it uses the disk: its file or memory. It is closed when
    /// all shards and the disk have dropped it.
    pub fn medium(&self) -> Arc<Medium> {
        Arc::clone(&self.medium)
    }

    pub(crate) fn remote(&self) -> Option<&dyn RemoteDisk> {
        self.remote.as_deref()
    }

    /// Sets, for a remote disk, whether its user can continue without it; see [`RemoteDisk::set_replaceable`]. Without
    /// effect on other disks.
    pub fn set_replaceable(&self, replaceable: bool) {
        if let Some(remote) = &self.remote {
            remote.set_replaceable(replaceable);
        }
    }

    /// Returns why the disk is lost, if it is: a remote disk was lost, or a file or block device became shorter while
    /// in use. A lost disk gets no further I/O until it is opened again.
    pub fn loss_reason(&self) -> Option<&str> {
        self.remote().and_then(RemoteDisk::loss_reason).or(self.medium.short_reason())
    }

    /// Checks an idle disk as the shards check disks after I/O: whether the file or block device has become shorter.
    /// Returns [`Disk::loss_reason`].
    pub fn check_size(&self) -> Option<&str> {
        self.is_whole_now();
        self.loss_reason()
    }

    /// Returns whether no write that a remote disk was sent and has not replied to can still take effect. Always true
    /// for other disks.
    pub fn has_no_pending_effects(&self) -> bool {
        self.remote().is_none_or(RemoteDisk::has_no_pending_effects)
    }

    /// Offsets and lengths are multiples of this, in bytes: 512 or 4096 on most disks.
    pub fn logical_block_bytes(&self) -> u32 {
        match self.remote() {
            Some(remote) => remote.logical_block_bytes(),
            None => self.medium.local_block_bytes().expect("it is not remote"),
        }
    }
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk").field("spec", &self.spec().to_string()).field("size_bytes", &self.size_bytes()).finish()
    }
}
