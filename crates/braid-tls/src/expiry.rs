//! Expiry of certificates, and timely warnings about it.

use braid_api::{Attention, AttentionCode};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use x509_cert::Certificate;
use x509_cert::der::Decode;

/// A certificate that expires in less than this many seconds needs attention (14 days).
const SOON_S: i64 = 14 * DAY_S;
const DAY_S: i64 = 86_400;

/// Returns a warning if a certificate has expired or expires in less than 14 days. `expiry_unix_s` is its expiry in
/// seconds of Unix time. The message is `whose` ("the certificate of …"), followed by [`expiry_text`]; `impact` is the
/// effect on clients.
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

/// Returns the predicate of a sentence about a certificate that remains valid for `left_s` seconds: "has expired" (0 or
/// less) or "expires within …". `None` from 14 days on.
pub fn expiry_text(left_s: i64) -> Option<String> {
    match left_s {
        SOON_S.. => None,
        ..=0 => Some("has expired".to_owned()),
        1..DAY_S => Some("expires within a day".to_owned()),
        _ => Some(format!("expires within {} days", left_s / DAY_S + 1)),
    }
}

/// Returns when the first certificate in a PEM file expires, in seconds of Unix time. `None` if the file cannot
/// be read or parsed.
pub fn of_file(path: &Path) -> Option<i64> {
    let certificate = CertificateDer::pem_file_iter(path).ok()?.next()?.ok()?;
    not_after(&certificate)
}

fn not_after(certificate: &[u8]) -> Option<i64> {
    of_certificate(certificate).map(|(_, to)| to)
}

/// Returns when a certificate in DER becomes valid and when it expires, in seconds of Unix time. `None` if it cannot be
/// parsed.
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
