//! Expiry of certificates, and timely warnings about it.

use braid_api::{Attention, AttentionCode};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use x509_cert::Certificate;
use x509_cert::der::Decode;

/// A certificate with less remaining validity needs attention, in seconds.
const SOON_S: i64 = 14 * DAY_S;
const DAY_S: i64 = 86_400;

/// Returns the warning about a certificate that expires at this Unix time, if it needs attention. `whose` begins the
/// sentence; `impact` is the effect on clients.
pub fn attention(whose: &str, impact: &str, file: &Path, expiry_unix_s: i64) -> Option<Attention> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    let when = expiry_text(expiry_unix_s.saturating_sub(now))?;
    Some(Attention {
        code: AttentionCode::CertificateExpires,
        subject: "daemon".to_owned(),
        message: format!("{whose} {when}"),
        impact: impact.to_owned(),
        remedy: format!("renew {}; the daemon reloads it automatically", file.display()),
        commands: vec![format!("openssl x509 -noout -dates -in {}", file.display())],
    })
}

/// Returns the end of a sentence about a certificate that remains valid for so many seconds: that it has expired, or
/// expires soon. `None` if it needs no attention yet.
pub fn expiry_text(left_s: i64) -> Option<String> {
    match left_s {
        SOON_S.. => None,
        ..=0 => Some("has expired".to_owned()),
        1..DAY_S => Some("expires within a day".to_owned()),
        _ => Some(format!("expires within {} days", left_s / DAY_S + 1)),
    }
}

/// Returns when the first certificate in a PEM file expires, in seconds of Unix time; none if that cannot be read.
pub fn of_file(path: &Path) -> Option<i64> {
    let certificate = CertificateDer::pem_file_iter(path).ok()?.next()?.ok()?;
    not_after(&certificate)
}

fn not_after(certificate: &[u8]) -> Option<i64> {
    of_certificate(certificate).map(|(_, to)| to)
}

/// Returns when a certificate becomes valid and when it expires, in seconds of Unix time.
pub fn of_certificate(certificate: &[u8]) -> Option<(i64, i64)> {
    let validity = Certificate::from_der(certificate).ok()?.tbs_certificate.validity;
    let unix_s = |time: x509_cert::time::Time| i64::try_from(time.to_unix_duration().as_secs()).ok();
    Some((unix_s(validity.not_before)?, unix_s(validity.not_after)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warning_comes_in_time() {
        assert_eq!(expiry_text(SOON_S), None);
        assert_eq!(expiry_text(SOON_S - 1).as_deref(), Some("expires within 14 days"));
        assert_eq!(expiry_text(DAY_S).as_deref(), Some("expires within 2 days"));
        assert_eq!(expiry_text(DAY_S - 1).as_deref(), Some("expires within a day"));
        assert_eq!(expiry_text(0).as_deref(), Some("has expired"));
        assert_eq!(expiry_text(-DAY_S).as_deref(), Some("has expired"));
    }

    #[test]
    fn the_expiry_of_a_certificate_is_parsed() {
        for (year, unix_s) in
            [(2027, 1_798_761_600), (2049, 2_493_072_000), (2050, 2_524_608_000), (2051, 2_556_144_000)]
        {
            let mut wanted = rcgen::CertificateParams::new(vec!["node1".to_owned()]).expect("a name");
            wanted.not_after = rcgen::date_time_ymd(year, 1, 1);
            let key = rcgen::KeyPair::generate().expect("a key");
            let certificate = wanted.self_signed(&key).expect("a certificate");
            assert_eq!(not_after(certificate.der()), Some(unix_s), "{year}");
        }
        for wrong in [&b""[..], b"0", &[0x30, 0x82, 0xff, 0xff, 1, 2]] {
            assert_eq!(not_after(wrong), None);
        }
        assert_eq!(of_file(Path::new("/dev/null")), None);
    }
}
