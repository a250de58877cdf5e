//! Why bytes are not a label that this version can use.

/// Why a label was refused. The text is a sentence for users.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabelError {
    /// Fewer than 4096 bytes.
    #[error("a label is 4096 bytes long; here are {len}")]
    Short {
        /// Their length.
        len: usize,
    },
    /// The magic is missing: this block never was a label, or it was wiped.
    #[error("there is no Braid label here")]
    NoMagic,
    /// The bytes changed after they were written, or were written in part.
    #[error("the label is damaged: its checksum is {found:08x}, its bytes make {expected:08x}")]
    Checksum {
        /// Computed from the bytes.
        expected: u32,
        /// Stored in the label.
        found: u32,
    },
    /// Written by a newer version.
    #[error("the label has format version {found}; this version of braid reads up to {supported}: use a newer braid")]
    NewerVersion {
        /// The label's version.
        found: u32,
        /// The newest that this code reads.
        supported: u32,
    },
    /// Written before the format was frozen.
    #[error("the label has format version {found}, which this version of braid no longer reads (it reads {supported})")]
    OlderVersion {
        /// The label's version.
        found: u32,
        /// The oldest that this code reads.
        supported: u32,
    },
    /// Incompatible features that this version does not know.
    #[error(
        "the label uses features that this version of braid does not know (bits {bits:#x}): use a newer braid; \
         nothing was changed"
    )]
    Incompatible {
        /// The unknown bits.
        bits: u64,
    },
    /// The checksum is right, but a field is invalid.
    #[error("the label's field `{field}` makes no sense: {reason}")]
    Field {
        /// Its name, as in `docs/internals/format/`.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

impl LabelError {
    /// Returns whether a label is present at all: a damaged, too new or invalid one counts.
    pub fn is_label(&self) -> bool {
        !matches!(self, LabelError::Short { .. } | LabelError::NoMagic)
    }
}
