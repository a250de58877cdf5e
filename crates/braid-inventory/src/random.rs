//! Random numbers and identities.

use braid_api::{ErrorDetail, Kind};
use uuid::Uuid;

/// Returns a random number, uniform over all 64 bits.
///
/// # Errors
/// [`Kind::Internal`]: the operating system provides none.
pub fn random() -> Result<u64, ErrorDetail> {
    getrandom::u64().map_err(|error| {
        ErrorDetail::new(Kind::Internal, format!("the operating system provides no random numbers: {error}"))
    })
}

/// Returns a random UUID (version 4).
///
/// # Errors
/// As [`random`].
pub fn random_uuid() -> Result<Uuid, ErrorDetail> {
    let (high, low) = (random()?, random()?);
    Ok(uuid::Builder::from_random_bytes((u128::from(high) << 64 | u128::from(low)).to_be_bytes()).into_uuid())
}
