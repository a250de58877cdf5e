//! Opening disks by their names, those on the other side of a network, too.

use braid_advice::errors::of_ring;
use braid_api::ErrorDetail;
use braid_nbd::client::{Endpoint, remote};
use braid_ring::{Disk, DiskSpec, OpenOptions, RingErrorKind};

/// Why a disk could not be opened, and whether it is only that somebody uses it.
pub struct NotOpened {
    /// What to say.
    pub detail: ErrorDetail,
    /// Somebody uses it: that may be over soon.
    pub in_use: bool,
}

/// Opens a disk, which is called `name` in what is said of it. May block.
///
/// # Errors
/// As [`remote::open_disk`]; the certificates that its address names are no use.
pub fn open_disk(spec: &DiskSpec, name: &str, options: OpenOptions) -> Result<Disk, NotOpened> {
    let endpoint = spec.remote().and_then(|uri| uri.parse::<Endpoint>().ok());
    let wishes = endpoint.as_ref().and_then(|endpoint| endpoint.tls.as_ref());
    let tls = wishes.map(braid_tls::client_of_nbd).transpose().map_err(|detail| NotOpened { detail, in_use: false })?;
    remote::open_disk(spec, options, tls).map_err(|error| {
        let in_use = error.kind == RingErrorKind::InUse;
        NotOpened { detail: of_ring(&error, name), in_use }
    })
}
