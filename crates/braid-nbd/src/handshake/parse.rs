//! Fields of an option's data, taken from the front; nothing is trusted.

use crate::codec::STRING_BYTES_MAX;

/// What is left of an option's data.
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

    /// Bytes preceded by their count.
    pub(super) fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        let (front, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(front)
    }
}

/// A string of the protocol, judged by its rules.
pub(super) enum Name<'a> {
    Text(&'a str),
    Bad(&'static str),
}

impl<'a> Name<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Name<'a> {
        if bytes.len() > STRING_BYTES_MAX {
            return Name::Bad("a string is over 4096 bytes long");
        }
        match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Name::Text(text),
            _ => Name::Bad("a string is not UTF-8, or holds a NUL"),
        }
    }
}
