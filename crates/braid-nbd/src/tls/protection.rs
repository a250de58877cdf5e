//! Protection of TLS 1.3 records with one key. Sending is hand-written; receiving is rustls'.
//!
//! Everything that is hand-written about cryptography is in [`SendingKey`]: the nonce, the additional data, and the
//! layout of a record around ring's AEAD. It allocates nothing and encrypts where the data lies, which no interface of
//! rustls 0.23 does. [`ReceivingKey`] passes records to rustls' `MessageDecrypter`, which decrypts in place, too.
//! `docs/decisions/0053-tls-records-are-our-own.md` has the measurements.
//!
//! # Review notes
//!
//! What it relies on:
//! - rustls negotiates the suite, derives every key and IV, and hands each one out once: at the end of the handshake,
//!   and for each key update. Sequence numbers start where rustls says. No key is derived, stored or logged here.
//! - ring's AEADs are correct and run in constant time. Secrets are wiped when dropped (rustls' `AeadKey`); the key
//!   schedules of ring are not, as in rustls itself.
//!
//! Nonces and sequence numbers (RFC 8446, 5.3):
//! - A nonce is the IV with the record's sequence number XORed, big-endian, into its last eight bytes.
//! - A [`SendingKey`] takes each sequence number once: [`SendingKey::nonce`] increments it before the number is used,
//!   and `checked_add` refuses to wrap. Neither type can be cloned, and neither sets a sequence number after `new`. A
//!   nonce can repeat under a key only if rustls hands the same key out twice.
//! - A failed encryption uses its number up. The connection ends then.
//!
//! Limits of a key's use:
//! - RFC 8446, 5.5: AES-GCM stays secure for 2^24.5 full records, 24 million (about 2^-57 for an attacker). rustls puts
//!   the limit at 2^24 (2^-60, draft-irtf-cfrg-aead-limits), which is 256 GiB in records of 16 KiB. A [`SendingKey`]
//!   refuses the record after the limit, and the record layer changes the key at half of it, 2^23 records. With
//!   ChaCha20-Poly1305 the sequence number, 2^64, is the only limit, and it refuses to wrap.
//! - Forgery: rustls gives 2^52 failed records for AES-GCM and 2^36 for ChaCha20-Poly1305. A [`ReceivingKey`] opens
//!   nothing after the first one that fails.
//!
//! What it never does:
//! - return any part of a record whose tag is wrong, or trust a header: its five bytes are part of what is
//!   authenticated;
//! - send padding, a record of more than 2^14 bytes of content, or one without its content type;
//! - panic on any length or content of a record;
//! - protect TLS 1.2, which stays within rustls.
//!
//! Tests: the records of RFC 8448, section 3; the fuzz target `tls_records` compares every byte with rustls.

use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use rustls::crypto::cipher::{AeadKey, InboundOpaqueMessage, Iv, MessageDecrypter};
use rustls::{ConnectionTrafficSecrets as Secrets, ContentType, Error, ProtocolVersion, Tls13CipherSuite};

use super::{RECORD_DATA_MAX, RECORD_HEADER};

/// The outer content type of every protected record (application_data). The real type is encrypted with the content.
pub(crate) const DATA: u8 = 23;
/// Length of the authentication tag, the same in every cipher.
pub(crate) const TAG: usize = 16;
/// The version in the header of every protected record: that of TLS 1.2 (RFC 8446, legacy_record_version).
const VERSION: [u8; 2] = [3, 3];

/// Splits secrets into cipher, key and IV.
fn parts(secrets: Secrets) -> Result<(&'static Algorithm, AeadKey, Iv), String> {
    match secrets {
        Secrets::Aes128Gcm { key, iv } => Ok((&AES_128_GCM, key, iv)),
        Secrets::Aes256Gcm { key, iv } => Ok((&AES_256_GCM, key, iv)),
        Secrets::Chacha20Poly1305 { key, iv } => Ok((&CHACHA20_POLY1305, key, iv)),
        _ => Err("a cipher that is not known here".to_owned()),
    }
}

/// The key of the sending direction, and the number of records protected with it.
pub(crate) struct SendingKey {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    sequence: u64,
    limit: u64,
}

impl SendingKey {
    /// Returns a key for the records from this sequence number on. It protects no record from number `limit` on.
    ///
    /// # Errors
    /// The cipher or the length of its key is not known.
    pub fn new((sequence, secrets): (u64, Secrets), limit: u64) -> Result<SendingKey, String> {
        let (algorithm, key, iv) = parts(secrets)?;
        SendingKey::from_bytes(algorithm, key.as_ref(), iv.as_ref(), sequence, limit)
    }

    fn from_bytes(
        algorithm: &'static Algorithm,
        key: &[u8],
        iv: &[u8],
        sequence: u64,
        limit: u64,
    ) -> Result<SendingKey, String> {
        let key = UnboundKey::new(algorithm, key).map_err(|_| "a key of another length")?;
        let iv = iv.try_into().map_err(|_| "a nonce of another length")?;
        Ok(SendingKey { key: LessSafeKey::new(key), iv, sequence, limit })
    }

    /// Returns the sequence number of the next record.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the next record's nonce, or `None` if the key is used up.
    fn nonce(&mut self) -> Option<Nonce> {
        let number = self.sequence;
        if number >= self.limit {
            return None;
        }
        self.sequence = number.checked_add(1)?;
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        Some(Nonce::assume_unique_for_key(nonce))
    }

    /// Encrypts the `len` bytes after the space for the header, at the front of `out`, into a record. Returns its
    /// length: header, data, content type and tag.
    ///
    /// # Errors
    /// The key is used up; `len` is more than a record may hold; `out` is too short.
    pub fn seal(&mut self, kind: u8, out: &mut [u8], len: usize) -> Result<usize, String> {
        if len > RECORD_DATA_MAX {
            return Err("more than a record may hold".to_owned());
        }
        self.protect(kind, out, len)
    }

    /// The same without a check of the length.
    fn protect(&mut self, kind: u8, out: &mut [u8], len: usize) -> Result<usize, String> {
        let whole = RECORD_HEADER + len + 1 + TAG;
        let record = out.get_mut(..whole).ok_or("no space for the record")?;
        let [high, low] = ((len + 1 + TAG) as u16).to_be_bytes();
        let header = [DATA, VERSION[0], VERSION[1], high, low];
        let nonce = self.nonce().ok_or("the key is used up")?;
        let (head, body) = record.split_at_mut(RECORD_HEADER);
        head.copy_from_slice(&header);
        body[len] = kind;
        let (plain, tag_at) = body.split_at_mut(len + 1);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(header), plain);
        tag_at.copy_from_slice(tag.map_err(|_| "it cannot be encrypted")?.as_ref());
        Ok(whole)
    }

    /// Returns a record with this content, of any length: data and content type, then padding.
    #[cfg(test)]
    pub fn forge(&mut self, inner: &[u8]) -> Vec<u8> {
        let (kind, inside) = inner.split_last().expect("at least a kind");
        let mut record = vec![0; RECORD_HEADER];
        record.extend_from_slice(inside);
        record.resize(RECORD_HEADER + inner.len() + TAG, 0);
        self.protect(*kind, &mut record, inside.len()).expect("it can be sealed");
        record
    }
}

/// The key of the receiving direction, and the number of records opened with it.
pub(crate) struct ReceivingKey {
    decrypter: Box<dyn MessageDecrypter>,
    sequence: u64,
    /// A record could not be opened.
    failed: bool,
}

impl ReceivingKey {
    /// Returns a key for the records from this sequence number on.
    ///
    /// # Errors
    /// The cipher is not known.
    pub fn new(suite: &Tls13CipherSuite, (sequence, secrets): (u64, Secrets)) -> Result<ReceivingKey, String> {
        let (_, key, iv) = parts(secrets)?;
        Ok(ReceivingKey { decrypter: suite.aead_alg.decrypter(key, iv), sequence, failed: false })
    }

    /// Decrypts a complete record in place. Returns its content type and content.
    ///
    /// # Errors
    /// The record is not authentic or has invalid content, or an earlier one was refused.
    pub fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<(u8, &'a [u8]), Error> {
        if std::mem::replace(&mut self.failed, true) {
            return Err(Error::DecryptError);
        }
        let (header, body) = record.split_at_mut_checked(RECORD_HEADER).ok_or(Error::DecryptError)?;
        // rustls authenticates this header, whatever arrived.
        let [high, low] = u16::try_from(body.len()).map_err(|_| Error::DecryptError)?.to_be_bytes();
        if header != [DATA, VERSION[0], VERSION[1], high, low] {
            return Err(Error::DecryptError);
        }
        let sequence = self.sequence;
        self.sequence = sequence.checked_add(1).ok_or_else(|| Error::General("the key is used up".to_owned()))?;
        let message = InboundOpaqueMessage::new(ContentType::ApplicationData, ProtocolVersion::TLSv1_2, body);
        let message = self.decrypter.decrypt(message, sequence)?;
        self.failed = false;
        Ok((message.typ.into(), message.payload))
    }
}

/// Compares with rustls what is sealed and opened. Any input is valid.
///
/// The first bytes select the cipher, the keys, the first sequence number and the changed bit; the rest is the content
/// of the records. AES-128-GCM is left to the tests: rustls takes no key of 16 bytes from outside.
pub(crate) fn fuzz(bytes: &[u8]) {
    use rustls::crypto::cipher::{OutboundChunks, OutboundPlainMessage};
    use rustls::crypto::ring::cipher_suite::{TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256};

    let Some((&[mode, kind, fill, flip_high, flip_low, len_high, len_low, key], rest)) = bytes.split_first_chunk()
    else {
        return;
    };
    let (rest, sequence) = match rest.split_first_chunk::<8>() {
        Some((number, rest)) if mode & 2 != 0 => (rest, u64::from_be_bytes(*number)),
        _ => (rest, u64::from(mode >> 2)),
    };
    let suite = if mode & 1 == 0 { &TLS13_AES_256_GCM_SHA384 } else { &TLS13_CHACHA20_POLY1305_SHA256 };
    let suite = suite.tls13().expect("a suite of TLS 1.3");
    let iv: [u8; NONCE_LEN] = std::array::from_fn(|at| fill.wrapping_mul(at as u8 | 1));
    let secrets = || {
        let (key, iv) = (AeadKey::from([key; 32]), Iv::from(iv));
        if mode & 1 == 0 { Secrets::Aes256Gcm { key, iv } } else { Secrets::Chacha20Poly1305 { key, iv } }
    };
    let receiving = |sequence| ReceivingKey::new(suite, (sequence, secrets())).expect("a known cipher");
    let mut ours = SendingKey::new((sequence, secrets()), u64::MAX).expect("a known cipher");
    let mut theirs = suite.aead_alg.encrypter(AeadKey::from([key; 32]), Iv::from(iv));
    let mut peer = receiving(sequence);

    // Bytes of any kind are no record.
    let mut stray = rest.to_vec();
    assert!(receiving(sequence).open(&mut stray).is_err(), "bytes without a key are no record");
    if let Some(body) = stray.len().checked_sub(RECORD_HEADER) {
        stray[..RECORD_HEADER].copy_from_slice(&[DATA, 3, 3, (body >> 8) as u8, body as u8]);
        assert!(receiving(sequence).open(&mut stray).is_err(), "with a valid header, neither");
    }

    // One record of a chosen length, and then the rest in records of their own.
    let chosen = usize::from(u16::from_be_bytes([len_high, len_low])) % (RECORD_DATA_MAX + 2);
    let contents = std::iter::once(vec![fill; chosen]).chain(rest.chunks(64).take(8).map(<[u8]>::to_vec));
    let kind = 21 + kind % 3;
    for (number, content) in contents.enumerate() {
        let mut record = [&[0; RECORD_HEADER], &content[..], &[0; 1 + TAG]].concat();
        let sealed = ours.seal(kind, &mut record, content.len());
        let Some(at) = sequence.checked_add(number as u64).filter(|&at| at < u64::MAX) else {
            assert!(sealed.is_err(), "a nonce was used twice");
            return;
        };
        if content.len() > RECORD_DATA_MAX {
            assert!(sealed.is_err() && ours.sequence() == at, "a record of more than 16 KiB");
            return;
        }
        assert_eq!(sealed, Ok(record.len()), "content, content type and tag");
        let message = OutboundPlainMessage {
            typ: ContentType::from(kind),
            version: ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(&content),
        };
        let expected = theirs.encrypt(message, at).expect("rustls can encrypt it").encode();
        assert!(record == expected, "rustls makes another record of it");

        let mut changed = record.clone();
        let bit = usize::from(u16::from_be_bytes([flip_high, flip_low])).wrapping_add(number) % (record.len() * 8);
        changed[bit / 8] ^= 1 << (bit % 8);
        let mut key = receiving(at);
        assert!(key.open(&mut changed).is_err(), "bit {bit} is not authenticated");
        assert!(key.open(&mut record.clone()).is_err(), "a key was used after a record that failed");
        assert!(receiving(at).open(&mut record[..bit / 8].to_vec()).is_err(), "a part of a record was opened");
        assert!(receiving(at + 1).open(&mut record.clone()).is_err(), "a record was opened out of order");
        assert_eq!(peer.open(&mut record).expect("it is authentic"), (kind, &content[..]));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(|digit| !digit.is_ascii_whitespace()).collect();
        let digit = |of: u8| char::from(of).to_digit(16).unwrap() as u8;
        digits.chunks(2).map(|pair| (digit(pair[0]) << 4) | digit(pair[1])).collect()
    }

    /// RFC 8448, section 3: the application data and the alerts of both sides, with the sequence numbers they had.
    #[test]
    fn records_of_rfc_8448() {
        let data: Vec<u8> = (0..50).collect();
        let client = ("17422dda596ed5d9acd890e3c63f5051", "5b78923dee08579033e523d9");
        let server = ("9f02283b6c9c07efc26bb9f2ac92e356", "cf782b88dd83549aadf1e984");
        let cases = [
            (
                client,
                0,
                23,
                &data[..],
                "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20441e2b62974e1f5a
                 6292a2977014bd1e3deae63aeebb21694915e4",
            ),
            (client, 1, 21, &[1, 0], "1703030013c9872760655666b74d7ff1153efd6db6d0b0e3"),
            (
                server,
                1,
                23,
                &data[..],
                "17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d90e6dffc602dcb501a59a8fcc49c4bf2
                 e5f0a21c0047c2abf332540dd032e167c2955d",
            ),
            (server, 2, 21, &[1, 0], "1703030013b58fd67166ebf599d24720cfbe7efa7a8864a9"),
        ];
        for ((key, iv), sequence, kind, content, expected) in cases {
            let mut key = SendingKey::from_bytes(&AES_128_GCM, &bytes(key), &bytes(iv), sequence, 1 << 24).unwrap();
            let mut record = [&[0; RECORD_HEADER], content, &[0; 1 + TAG]].concat();
            assert_eq!(key.seal(kind, &mut record, content.len()), Ok(record.len()));
            assert_eq!(record, bytes(expected), "sequence number {sequence}");
        }
    }

    #[test]
    fn a_key_is_not_used_beyond_its_limit() {
        for limit in [0, 3, u64::MAX] {
            let start = limit.saturating_sub(2);
            let mut key = SendingKey::from_bytes(&AES_128_GCM, &[1; 16], &[2; 12], start, limit).unwrap();
            let mut record = [0; 64];
            for _ in start..limit {
                key.seal(DATA, &mut record, 8).unwrap();
            }
            for _ in 0..3 {
                key.seal(DATA, &mut record, 8).unwrap_err();
                assert_eq!(key.sequence(), limit, "no number is skipped");
            }
        }
    }

    #[test]
    fn lengths_are_checked_before_a_nonce_is_used() {
        let mut key = SendingKey::from_bytes(&AES_128_GCM, &[1; 16], &[2; 12], 0, 9).unwrap();
        key.seal(DATA, &mut vec![0; 1 << 17], RECORD_DATA_MAX + 1).unwrap_err();
        key.seal(DATA, &mut [0; 5 + 8 + 1 + 15], 8).unwrap_err();
        key.seal(DATA, &mut [], 0).unwrap_err();
        assert_eq!(key.sequence(), 0);
        key.seal(DATA, &mut [0; 5 + 8 + 1 + 16], 8).unwrap();
        assert!(SendingKey::from_bytes(&AES_128_GCM, &[1; 32], &[2; 12], 0, 9).is_err());
        assert!(SendingKey::from_bytes(&AES_128_GCM, &[1; 16], &[2; 8], 0, 9).is_err());
    }

    /// Without a fuzzer: every length around the limits, and every bit of some records.
    #[test]
    fn rustls_makes_the_same_records() {
        for cipher in 0..2_u8 {
            for len in [0_u16, 1, 15, 16, 17, 255, 256, 4112, 16383, 16384, 16385] {
                let [high, low] = len.to_be_bytes();
                fuzz(&[cipher, 2, 7, 1, 9, high, low, 3]);
            }
            for bit in 0..(5 + 4 + 17) * 8_u16 {
                let [high, low] = bit.to_be_bytes();
                fuzz(&[cipher | 4, 2, 7, high, low, 0, 4, 3, 1, 2, 3]);
            }
            for sequence in [0, u64::MAX - 2, u64::MAX - 1, u64::MAX] {
                let head = [cipher | 2, 2, 7, 1, 9, 0, 40, 3];
                fuzz(&[&head[..], &sequence.to_be_bytes(), &[8; 300]].concat());
            }
        }
    }
}
