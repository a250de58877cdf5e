//! Why bytes are not a label that this version can use.

/// Why a label was refused. Its text is a sentence for people.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabelError {
    /// Fewer than 4096 bytes.
    #[error("a label is 4096 bytes long; here are {len}")]
    Short {
        /// How many there are.
        len: usize,
    },
    /// The magic is not there: this block never was a label, or it was wiped.
    #[error("there is no Braid label here")]
    NoMagic,
    /// The bytes changed after they were written, or were written in part.
    #[error("the label is damaged: its checksum is {found:08x}, its bytes make {expected:08x}")]
    Checksum {
        /// What the bytes make.
        expected: u32,
        /// What the label says.
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
    /// Written by a version before the format was settled.
    #[error("the label has format version {found}, which this version of braid no longer reads (it reads {supported})")]
    OlderVersion {
        /// The label's version.
        found: u32,
        /// The oldest that this code reads.
        supported: u32,
    },
    /// A feature that this code must not pass over.
    #[error(
        "the label uses features that this version of braid does not know (bits {bits:#x}): use a newer braid; \
         nothing was changed"
    )]
    Incompatible {
        /// The unknown bits.
        bits: u64,
    },
    /// The checksum is right, and a field makes no sense.
    #[error("the label's field `{field}` makes no sense: {reason}")]
    Field {
        /// Its name, as in `docs/format.md`.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

impl LabelError {
    /// Whether a label was here at all (damaged, too new or nonsensical counts).
    pub fn is_label(&self) -> bool {
        !matches!(self, LabelError::Short { .. } | LabelError::NoMagic)
    }
}
