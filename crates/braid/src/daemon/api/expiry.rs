//! When a certificate expires.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::path::Path;
use x509_cert::Certificate;
use x509_cert::der::Decode;

/// When the first certificate in a PEM file expires, in seconds of Unix time; none where that cannot be read.
pub fn of_file(path: &Path) -> Option<i64> {
    let certificate = CertificateDer::pem_file_iter(path).ok()?.next()?.ok()?;
    not_after(&certificate)
}

fn not_after(certificate: &[u8]) -> Option<i64> {
    let certificate = Certificate::from_der(certificate).ok()?;
    i64::try_from(certificate.tbs_certificate.validity.not_after.to_unix_duration().as_secs()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_certificate_is_read() {
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
