//! Codes of what needs attention: the key to the runbooks.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// What an item of `attention` is about, as a stable word. `braid explain CODE` prints its runbook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AttentionCode {
    /// An array lacks disks that it needs, and is not active.
    ArrayIncomplete,
    /// An array is not active for another reason than missing disks.
    ArrayInactive,
    /// A redundant array has lost more members than it tolerates.
    ArrayFailed,
    /// A redundant array lacks a member.
    ArrayDegraded,
    /// A member of an array is being rebuilt.
    ArrayRebuilding,
    /// A member of an array cannot be rebuilt completely, as no other member can be read where it needs them.
    ArrayRebuildUnreadable,
    /// Stripes of an array have no known content after a crash and the loss of a member.
    ArrayUnreadable,
    /// An array has lost the disk of its journal.
    ArrayJournalLost,
    /// A check, a repair or a resync of an array has found damage.
    ArrayDamaged,
    /// The parity of an array that was started by force is not verified yet.
    ArrayParityUnverified,
    /// An imported array of Linux md has something that its readers need to know.
    ArrayImported,
    /// A disk of an array fails I/O.
    DiskErrors,
    /// A disk of an array does not complete I/O.
    DiskHangs,
    /// A disk of an array is gone.
    DiskGone,
    /// A disk became shorter than it was.
    DiskShort,
    /// The file of a disk was deleted while it is open.
    DiskDeleted,
    /// The file of a disk finds no space on its file system.
    DiskLacksSpace,
    /// Disks have not answered since the daemon started.
    DisksLate,
    /// An export does not listen.
    ExportFailed,
    /// The array or pool of an export was not found.
    ExportSourceMissing,
    /// A pool is not active.
    PoolInactive,
    /// A member of a pool has failed a write or a flush.
    PoolWriteFailed,
    /// A pool was opened after a crash without its in-memory log.
    PoolLogMissing,
    /// The in-memory log of a pool was removed while the pool is active.
    PoolLogRemoved,
    /// Records of a pool's metadata are damaged.
    PoolDamaged,
    /// A pool is at least 80 % full.
    PoolNearlyFull,
    /// A pool's own writes find no space on the file system of a member.
    PoolLacksSpace,
    /// The disk of a pool's member became shorter.
    PoolMemberShort,
    /// A pool is active without a member.
    PoolMemberMissing,
    /// A missing member of a pool is present again.
    PoolMemberReturned,
    /// A member of a pool was given up.
    PoolMemberGivenUp,
    /// A snapshot policy cannot take snapshots.
    SnapshotPolicyFailed,
    /// A replicated volume has lost more replicas than it tolerates.
    VolumeFailed,
    /// No node serves a replicated volume.
    VolumeUnserved,
    /// Whether a node serves a replicated volume is not known.
    VolumeServiceUnknown,
    /// Too few voters of a replicated volume answer.
    VolumeWaitsForQuorum,
    /// No replica that holds all data of a replicated volume is available.
    VolumeWaitsForData,
    /// A replicated volume is being opened, or opening it is retried.
    VolumeOpening,
    /// Other nodes have deleted what they had of a replicated volume.
    VolumeDeletedElsewhere,
    /// A replica cannot be rebuilt completely, as no other replica can be read where it needs them.
    VolumeRebuildUnreadable,
    /// Stripes of a replicated volume have no known content.
    VolumeUnreadable,
    /// A replicated volume has lost the disk of its journal.
    VolumeJournalLost,
    /// A check or a resync of a replicated volume has found damage.
    VolumeDamaged,
    /// The node of a replica does not answer.
    ReplicaUnreachable,
    /// A replica is out of a volume although its node answers.
    ReplicaReturning,
    /// A replica is being rebuilt.
    ReplicaRebuilding,
    /// The rebuild of a replica is paused by a command.
    ReplicaRebuildPaused,
    /// I/O of a replica fails or hangs.
    ReplicaFailing,
    /// A replica was removed, and no other one has its slot.
    ReplicaRemoved,
    /// A volume was opened by force without a replica.
    ReplicaLeftOut,
    /// A replica on this node has lost its votes.
    ReplicaLost,
    /// A replica on this node does not vote.
    ReplicaFailed,
    /// Another node does not answer.
    NodeUnreachable,
    /// The clocks of two nodes differ.
    NodeClockDiffers,
    /// This node was removed from its cluster.
    NodeRemoved,
    /// The certificate of this node cannot be renewed.
    NodeCertificateNotRenewed,
    /// This node cannot listen on an address for other nodes.
    NodeAddressUnavailable,
    /// The state file cannot be written.
    StateNotSaved,
    /// The folder of the daemon's state was deleted and cannot be created again.
    StateFolderDeleted,
    /// A certificate of the API or of exports expires soon, or has expired.
    CertificateExpires,
    /// The new certificate of exports cannot be used.
    NbdCertificateInvalid,
    /// The new certificate or tokens of the API cannot be used.
    ApiFilesInvalid,
    /// A code of a newer daemon that this client does not know, or no code: an older daemon sends none.
    #[default]
    #[serde(other)]
    Unknown,
}

impl AttentionCode {
    /// Every code that has a runbook: all but [`AttentionCode::Unknown`].
    pub const ALL: [AttentionCode; 62] = [
        AttentionCode::ArrayIncomplete,
        AttentionCode::ArrayInactive,
        AttentionCode::ArrayFailed,
        AttentionCode::ArrayDegraded,
        AttentionCode::ArrayRebuilding,
        AttentionCode::ArrayRebuildUnreadable,
        AttentionCode::ArrayUnreadable,
        AttentionCode::ArrayJournalLost,
        AttentionCode::ArrayDamaged,
        AttentionCode::ArrayParityUnverified,
        AttentionCode::ArrayImported,
        AttentionCode::DiskErrors,
        AttentionCode::DiskHangs,
        AttentionCode::DiskGone,
        AttentionCode::DiskShort,
        AttentionCode::DiskDeleted,
        AttentionCode::DiskLacksSpace,
        AttentionCode::DisksLate,
        AttentionCode::ExportFailed,
        AttentionCode::ExportSourceMissing,
        AttentionCode::PoolInactive,
        AttentionCode::PoolWriteFailed,
        AttentionCode::PoolLogMissing,
        AttentionCode::PoolLogRemoved,
        AttentionCode::PoolDamaged,
        AttentionCode::PoolNearlyFull,
        AttentionCode::PoolLacksSpace,
        AttentionCode::PoolMemberShort,
        AttentionCode::PoolMemberMissing,
        AttentionCode::PoolMemberReturned,
        AttentionCode::PoolMemberGivenUp,
        AttentionCode::SnapshotPolicyFailed,
        AttentionCode::VolumeFailed,
        AttentionCode::VolumeUnserved,
        AttentionCode::VolumeServiceUnknown,
        AttentionCode::VolumeWaitsForQuorum,
        AttentionCode::VolumeWaitsForData,
        AttentionCode::VolumeOpening,
        AttentionCode::VolumeDeletedElsewhere,
        AttentionCode::VolumeRebuildUnreadable,
        AttentionCode::VolumeUnreadable,
        AttentionCode::VolumeJournalLost,
        AttentionCode::VolumeDamaged,
        AttentionCode::ReplicaUnreachable,
        AttentionCode::ReplicaReturning,
        AttentionCode::ReplicaRebuilding,
        AttentionCode::ReplicaRebuildPaused,
        AttentionCode::ReplicaFailing,
        AttentionCode::ReplicaRemoved,
        AttentionCode::ReplicaLeftOut,
        AttentionCode::ReplicaLost,
        AttentionCode::ReplicaFailed,
        AttentionCode::NodeUnreachable,
        AttentionCode::NodeClockDiffers,
        AttentionCode::NodeRemoved,
        AttentionCode::NodeCertificateNotRenewed,
        AttentionCode::NodeAddressUnavailable,
        AttentionCode::StateNotSaved,
        AttentionCode::StateFolderDeleted,
        AttentionCode::CertificateExpires,
        AttentionCode::NbdCertificateInvalid,
        AttentionCode::ApiFilesInvalid,
    ];

    /// Returns the stable word.
    pub const fn word(self) -> &'static str {
        match self {
            AttentionCode::ArrayIncomplete => "array-incomplete",
            AttentionCode::ArrayInactive => "array-inactive",
            AttentionCode::ArrayFailed => "array-failed",
            AttentionCode::ArrayDegraded => "array-degraded",
            AttentionCode::ArrayRebuilding => "array-rebuilding",
            AttentionCode::ArrayRebuildUnreadable => "array-rebuild-unreadable",
            AttentionCode::ArrayUnreadable => "array-unreadable",
            AttentionCode::ArrayJournalLost => "array-journal-lost",
            AttentionCode::ArrayDamaged => "array-damaged",
            AttentionCode::ArrayParityUnverified => "array-parity-unverified",
            AttentionCode::ArrayImported => "array-imported",
            AttentionCode::DiskErrors => "disk-errors",
            AttentionCode::DiskHangs => "disk-hangs",
            AttentionCode::DiskGone => "disk-gone",
            AttentionCode::DiskShort => "disk-short",
            AttentionCode::DiskDeleted => "disk-deleted",
            AttentionCode::DiskLacksSpace => "disk-lacks-space",
            AttentionCode::DisksLate => "disks-late",
            AttentionCode::ExportFailed => "export-failed",
            AttentionCode::ExportSourceMissing => "export-source-missing",
            AttentionCode::PoolInactive => "pool-inactive",
            AttentionCode::PoolWriteFailed => "pool-write-failed",
            AttentionCode::PoolLogMissing => "pool-log-missing",
            AttentionCode::PoolLogRemoved => "pool-log-removed",
            AttentionCode::PoolDamaged => "pool-damaged",
            AttentionCode::PoolNearlyFull => "pool-nearly-full",
            AttentionCode::PoolLacksSpace => "pool-lacks-space",
            AttentionCode::PoolMemberShort => "pool-member-short",
            AttentionCode::PoolMemberMissing => "pool-member-missing",
            AttentionCode::PoolMemberReturned => "pool-member-returned",
            AttentionCode::PoolMemberGivenUp => "pool-member-given-up",
            AttentionCode::SnapshotPolicyFailed => "snapshot-policy-failed",
            AttentionCode::VolumeFailed => "volume-failed",
            AttentionCode::VolumeUnserved => "volume-unserved",
            AttentionCode::VolumeServiceUnknown => "volume-service-unknown",
            AttentionCode::VolumeWaitsForQuorum => "volume-waits-for-quorum",
            AttentionCode::VolumeWaitsForData => "volume-waits-for-data",
            AttentionCode::VolumeOpening => "volume-opening",
            AttentionCode::VolumeDeletedElsewhere => "volume-deleted-elsewhere",
            AttentionCode::VolumeRebuildUnreadable => "volume-rebuild-unreadable",
            AttentionCode::VolumeUnreadable => "volume-unreadable",
            AttentionCode::VolumeJournalLost => "volume-journal-lost",
            AttentionCode::VolumeDamaged => "volume-damaged",
            AttentionCode::ReplicaUnreachable => "replica-unreachable",
            AttentionCode::ReplicaReturning => "replica-returning",
            AttentionCode::ReplicaRebuilding => "replica-rebuilding",
            AttentionCode::ReplicaRebuildPaused => "replica-rebuild-paused",
            AttentionCode::ReplicaFailing => "replica-failing",
            AttentionCode::ReplicaRemoved => "replica-removed",
            AttentionCode::ReplicaLeftOut => "replica-left-out",
            AttentionCode::ReplicaLost => "replica-lost",
            AttentionCode::ReplicaFailed => "replica-failed",
            AttentionCode::NodeUnreachable => "node-unreachable",
            AttentionCode::NodeClockDiffers => "node-clock-differs",
            AttentionCode::NodeRemoved => "node-removed",
            AttentionCode::NodeCertificateNotRenewed => "node-certificate-not-renewed",
            AttentionCode::NodeAddressUnavailable => "node-address-unavailable",
            AttentionCode::StateNotSaved => "state-not-saved",
            AttentionCode::StateFolderDeleted => "state-folder-deleted",
            AttentionCode::CertificateExpires => "certificate-expires",
            AttentionCode::NbdCertificateInvalid => "nbd-certificate-invalid",
            AttentionCode::ApiFilesInvalid => "api-files-invalid",
            AttentionCode::Unknown => "unknown",
        }
    }
}

impl fmt::Display for AttentionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sent_as_their_words() {
        for code in AttentionCode::ALL {
            let sent = serde_json::to_string(&code).expect("a code is a string");
            assert_eq!(sent, format!("\"{code}\""));
            assert_eq!(serde_json::from_str::<AttentionCode>(&sent).expect("the word is read back"), code);
        }
    }

    #[test]
    fn a_code_of_a_newer_daemon_is_read_as_unknown() {
        let read: AttentionCode = serde_json::from_str("\"eaten-by-bears\"").expect("unknown words are allowed");
        assert_eq!(read, AttentionCode::Unknown);
    }
}
