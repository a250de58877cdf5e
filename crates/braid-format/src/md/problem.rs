//! Why an md array is not readable, or not without `force`.

use braid_geometry::Layout;

/// A reason. A device is its index in the list given to [`super::assemble()`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AssembleProblem {
    /// The level is not supported.
    Level(i32),
    /// The layout is not supported at this level.
    Layout {
        /// The level's name.
        level: &'static str,
        /// The layout, as in the superblock.
        layout: u32,
    },
    /// A raid0 over unequal members whose superblocks do not record the layout.
    Raid0Layout,
    /// The requested layout is not one of the array's level, or not the recorded one.
    RequestedLayout(Layout),
    /// The array is being reshaped: its parts have different layouts.
    Reshape,
    /// The array has a journal: the latest writes may be only there.
    Journal,
    /// The array belongs to a cluster: several hosts may use it.
    Clustered,
    /// Unknown features.
    Features(u32),
    /// A number that is invalid or not supported.
    Numbers(String),
    /// Two devices claim the same role: one is a copy, or both are paths to one disk.
    DuplicateRole {
        /// The role that both claim.
        role: u16,
        /// One of the devices.
        one: usize,
        /// The other one.
        other: usize,
    },
    /// Two devices have each marked the other as failed, and both were written since.
    Diverged {
        /// One of the devices.
        one: usize,
        /// The other one.
        other: usize,
    },
    /// Members are missing that the level needs.
    TooFew {
        /// Roles without a current device.
        missing: Vec<u16>,
    },
    /// The array is readable only with stale members, whose data differ from those of the others.
    Stale {
        /// The stale devices, with the number of events by which they are behind the newest.
        devices: Vec<(usize, u64)>,
    },
    /// The array was not stopped cleanly and is degraded: data reconstructed from parity may be wrong (the write hole).
    DirtyDegraded,
}

impl AssembleProblem {
    /// Returns whether `force` overrides the problem.
    #[must_use]
    pub fn can_be_forced(&self) -> bool {
        matches!(self, AssembleProblem::Stale { .. } | AssembleProblem::DirtyDegraded)
    }

    /// Returns the problem as a sentence without its full stop. `name` returns how to call a device.
    #[must_use]
    pub fn text(&self, name: &dyn Fn(usize) -> String) -> String {
        match self {
            AssembleProblem::Level(level) => format!("level {level} of md cannot be read"),
            AssembleProblem::Layout { level, layout } => format!("layout {layout:#x} of {level} cannot be read"),
            AssembleProblem::Raid0Layout => "it is a raid0 over members of different sizes, and its superblocks do not say which of md's two layouts it \
                                     has: with the wrong one much of it would be mixed up"
                .to_owned(),
            AssembleProblem::RequestedLayout(layout) => format!("layout {layout} was asked for, and it does not have that one"),
            AssembleProblem::Reshape => "it is being reshaped (another number of members, level, chunk or data offset): a part of it is laid out in one \
                                 way, the rest in another"
                .to_owned(),
            AssembleProblem::Journal => "it has a journal (write journal of raid5 and raid6): what was written last may stand there alone".to_owned(),
            AssembleProblem::Clustered => "it is an array of a cluster: another host may be writing to it".to_owned(),
            AssembleProblem::Features(bits) => format!("its superblocks use features that are not known here ({bits:#x})"),
            AssembleProblem::Numbers(what) => what.clone(),
            AssembleProblem::DuplicateRole { role, one, other } => {
                format!("{} and {} both say that they are member {role}", name(*one), name(*other))
            }
            AssembleProblem::Diverged { one, other } => format!(
                "{} and {} have each left out the other and gone on: they hold different data",
                name(*one),
                name(*other)
            ),
            AssembleProblem::TooFew { missing: lacking } => {
                let (word, list) = (if lacking.len() == 1 { "member" } else { "members" }, roles(lacking));
                format!("without {word} {list} some of its data are nowhere")
            }
            AssembleProblem::Stale { devices } => {
                let each = |(device, behind): &(usize, u64)| match behind {
                    0 | 1 => format!("{} was left out by the others", name(*device)),
                    behind => format!("{} is {behind} events behind", name(*device)),
                };
                let list: Vec<String> = devices.iter().map(each).collect();
                format!("it could only be read with members that are old: {}", list.join(", "))
            }
            AssembleProblem::DirtyDegraded => "it was not stopped in order and lacks a member: where it was being written, what is computed in place of \
                                       that member may be wrong (the write hole)"
                .to_owned(),
        }
    }

    /// Returns what to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            AssembleProblem::Level(_) | AssembleProblem::Layout { .. } | AssembleProblem::Features(_) | AssembleProblem::Numbers(_) => {
                "let md assemble it (mdadm --assemble --readonly), and copy it from there"
            }
            AssembleProblem::Raid0Layout => {
                "add --layout original where a kernel before 3.14 has written it, --layout alternate where a later one has; look at the data \
                 before you trust them"
            }
            AssembleProblem::RequestedLayout(_) => "leave --layout out",
            AssembleProblem::Reshape => "let md finish it first (mdadm --assemble, then wait for /proc/mdstat)",
            AssembleProblem::Journal => "let md replay it once: mdadm --assemble with the journal's device, then mdadm --stop, then remove the journal",
            AssembleProblem::Clustered => "stop it on all hosts, and copy it through one of them",
            AssembleProblem::DuplicateRole { .. } => "name one of the two only",
            AssembleProblem::Diverged { .. } => "name only the disks of the half that you want",
            AssembleProblem::TooFew { .. } => "name further disks of it",
            AssembleProblem::Stale { .. } => "name further disks of it, or add --force: then old data are mixed with new ones",
            AssembleProblem::DirtyDegraded => {
                "name further disks of it, or add --force, and check what you copy; or let md assemble it (mdadm --assemble --force)"
            }
        }
        .to_owned()
    }
}

/// Formats roles as a list.
fn roles(roles: &[u16]) -> String {
    roles.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}
