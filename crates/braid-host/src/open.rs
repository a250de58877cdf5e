//! Opens local and remote disks by name.

use braid_advice::errors::ring_error;
use braid_api::ErrorDetail;
use braid_nbd::client::{Endpoint, remote};
use braid_ring::{Disk, DiskSpec, OpenOptions, RingErrorKind};

/// The error of opening a disk.
pub struct DiskOpenError {
    /// The error for the user.
    pub detail: ErrorDetail,
    /// Whether the disk is in use, so that a later attempt may succeed.
    pub in_use: bool,
}

/// Opens a disk, which error messages call `name`. May block.
///
/// # Errors
/// As [`remote::open_disk`], and if the certificates that the disk's address names cannot be used.
pub fn open_disk(spec: &DiskSpec, name: &str, options: OpenOptions) -> Result<Disk, DiskOpenError> {
    let endpoint = spec.remote().and_then(|uri| uri.parse::<Endpoint>().ok());
    let tls_request = endpoint.as_ref().and_then(|endpoint| endpoint.tls.as_ref());
    let tls =
        tls_request.map(braid_tls::nbd_client).transpose().map_err(|detail| DiskOpenError { detail, in_use: false })?;
    remote::open_disk(spec, options, tls).map_err(|error| {
        let in_use = error.kind == RingErrorKind::InUse;
        DiskOpenError { detail: ring_error(&error, name), in_use }
    })
}
