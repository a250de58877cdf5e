//! Parses the fields of an option's data from the front. The input is untrusted.

use crate::codec::STRING_BYTES_MAX;

/// The unparsed rest of an option's data.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn new(data: &'a [u8]) -> Fields<'a> {
        Fields(data)
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.0
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        let (front, rest) = self.0.split_first_chunk::<2>()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*front))
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        let (front, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*front))
    }

    /// Takes a string that is preceded by its length.
    pub(super) fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        let (front, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(front)
    }
}

/// A protocol string, validated.
pub(super) enum ProtocolString<'a> {
    Text(&'a str),
    Bad(&'static str),
}

impl<'a> ProtocolString<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> ProtocolString<'a> {
        if bytes.len() > STRING_BYTES_MAX {
            return ProtocolString::Bad("a string is over 4096 bytes long");
        }
        match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => ProtocolString::Text(text),
            _ => ProtocolString::Bad("a string is not UTF-8, or holds a NUL"),
        }
    }
}
