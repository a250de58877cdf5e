//! The table of nodes: what each node knows of all nodes, and how two tables are merged.
//!
//! Each node has one *line*, identified by its UUID, and increments the version of the line with each change.
//! Guarantees: the lines of one node are totally ordered, first by whether the node was removed, then by version. A
//! merge keeps the greatest line, in whatever order tables are merged; so nodes that have exchanged everything have the
//! same table. A node that was removed never returns under the same UUID.

use super::host_port::HostPort;
use super::token::from_hex;
use braid_api::limits::NODES_MAX;
use braid_api::{ErrorDetail, Kind, MemberNode, names};
use braid_format::limits::COUNTER_MAX;
use uuid::Uuid;

/// Maximum number of lines of a table, those of removed nodes included.
pub const LINES_MAX: usize = 1024;

/// A change that a merge has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// A node joined.
    Joined(MemberNode),
    /// A node was removed.
    Removed(MemberNode),
    /// A node's line has changed.
    Changed(MemberNode),
}

/// Merges `theirs` into `ours`, which is sorted by UUID afterwards, and returns the changes. The caller has validated
/// `theirs` with [`check`].
pub fn merge(ours: &mut Vec<MemberNode>, theirs: &[MemberNode]) -> Vec<TableChange> {
    let mut changes = Vec::new();
    for line in theirs {
        match ours.iter_mut().find(|known| known.uuid == line.uuid) {
            None => {
                // The line of a removed node is kept, too: another node may still have an older line.
                if !line.removed {
                    changes.push(TableChange::Joined(line.clone()));
                }
                ours.push(line.clone());
            }
            Some(known) if precedence(known) < precedence(line) => {
                changes.push(match (known.removed, line.removed) {
                    (false, true) => TableChange::Removed(line.clone()),
                    _ => TableChange::Changed(line.clone()),
                });
                *known = line.clone();
            }
            Some(_) => {}
        }
    }
    ours.sort_by(|a, b| a.uuid.cmp(&b.uuid));
    changes
}

/// Returns the key by which lines of one node are compared: a removal is greater than any other line, then the version
/// decides. The line itself comes last, so that the order is total and every node keeps the same line.
fn precedence(line: &MemberNode) -> (bool, u64, &MemberNode) {
    (line.removed, line.version, line)
}

/// Refuses a table that no daemon would send.
///
/// # Errors
/// [`Kind::InvalidArgument`].
pub fn check(lines: &[MemberNode]) -> Result<(), ErrorDetail> {
    if lines.len() > LINES_MAX {
        return Err(wrong(format!("it has more than {LINES_MAX} lines")));
    }
    lines.iter().try_for_each(check_line)
}

/// Refuses a line that no daemon would send.
///
/// # Errors
/// [`Kind::InvalidArgument`].
pub fn check_line(line: &MemberNode) -> Result<(), ErrorDetail> {
    let uuid = Uuid::parse_str(&line.uuid).ok().filter(|uuid| uuid.to_string() == line.uuid && !uuid.is_nil());
    if uuid.is_none() {
        return Err(wrong(format!("{:?} is no identity", line.uuid)));
    }
    if line.version > COUNTER_MAX {
        return Err(wrong(format!("{} is no version of a line", line.version)));
    }
    names::check_name(&line.name).map_err(|why| wrong(why.to_string()))?;
    for address in [&line.api, &line.data] {
        HostPort::parse(address, 0)
            .ok()
            .filter(|address| address.port != 0)
            .ok_or_else(|| wrong(format!("{address:?} is no address")))?;
    }
    if from_hex::<32>(&line.key_sha256).is_none() {
        return Err(wrong("a digest of a key has 64 hexadecimal digits".to_owned()));
    }
    Ok(())
}

fn wrong(why: String) -> ErrorDetail {
    ErrorDetail::new(Kind::InvalidArgument, format!("the table of nodes is invalid: {why}"))
        .remedy("are the daemons of one version? (`braid --version`)")
}

/// Returns the lines of nodes that were not removed.
pub fn present(lines: &[MemberNode]) -> impl Iterator<Item = &MemberNode> {
    lines.iter().filter(|line| !line.removed)
}

/// Returns the node with this name or UUID.
///
/// # Errors
/// [`Kind::NotFound`]; [`Kind::InvalidArgument`] if two nodes have the name, because they were admitted by different
/// nodes at the same time.
pub fn find<'a>(lines: &'a [MemberNode], name: &str) -> Result<&'a MemberNode, ErrorDetail> {
    let mut found = present(lines).filter(|line| line.name == name || line.uuid == name);
    match (found.next(), found.next()) {
        (Some(line), None) => Ok(line),
        (Some(one), Some(other)) => Err(ErrorDetail::new(
            Kind::InvalidArgument,
            format!("two nodes are called {name}: {} at {}, and {} at {}", one.uuid, one.api, other.uuid, other.api),
        )
        .with("node", name)
        .remedy("name the one that you mean by its UUID; one of them should be removed and join under another name")),
        (None, _) => {
            let mut known: Vec<&str> = present(lines).map(|line| line.name.as_str()).collect();
            known.sort_unstable();
            let known =
                if known.is_empty() { "there are none".to_owned() } else { format!("there are {}", known.join(", ")) };
            Err(ErrorDetail::new(Kind::NotFound, format!("there is no node {name}; {known}"))
                .with("node", name)
                .remedy("`braid node list` shows them"))
        }
    }
}

/// Checks whether a daemon may become a node.
///
/// # Errors
/// Its name or identity is taken, its line is invalid, or there are too many nodes.
pub fn check_admission(lines: &[MemberNode], new: &MemberNode) -> Result<(), ErrorDetail> {
    check_line(new)?;
    if new.removed
        || new.version != 1
        || lines.iter().any(|line| line.uuid == new.uuid || line.key_sha256 == new.key_sha256)
    {
        return Err(wrong("a new node has an identity of its own".to_owned()));
    }
    if let Some(other) = present(lines).find(|line| line.name == new.name) {
        return Err(ErrorDetail::new(
            Kind::Exists,
            format!("there is a node {} already, at {}", other.name, other.api),
        )
        .with("node", &other.name)
        .remedy("choose another name; or, if that node is gone for good, remove it first: braid node remove NAME"));
    }
    if present(lines).count() >= NODES_MAX || lines.len() >= LINES_MAX {
        return Err(ErrorDetail::new(Kind::LimitReached, format!("there are {NODES_MAX} nodes, or were {LINES_MAX}"))
            .remedy("remove one first, or begin another cluster"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(number: u128, version: u64, removed: bool, name: &str) -> MemberNode {
        MemberNode {
            uuid: Uuid::from_u128(number).to_string(),
            version,
            removed,
            name: name.to_owned(),
            api: "127.0.0.1:1".to_owned(),
            data: "127.0.0.1:2".to_owned(),
            tls_data: true,
            key_sha256: format!("{number:064x}"),
        }
    }

    /// All orders and groupings of three conflicting tables merge to one result.
    #[test]
    fn merges_in_any_order_give_the_same_table() {
        let tables = [
            vec![line(1, 1, false, "a"), line(2, 3, false, "b")],
            vec![line(2, 2, true, "b"), line(3, 1, false, "c")],
            vec![line(1, 2, false, "x"), line(2, 4, false, "y"), line(3, 1, false, "z")],
        ];
        let mut outcomes = Vec::new();
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut one_by_one = Vec::new();
            order.iter().for_each(|&at| {
                merge(&mut one_by_one, &tables[at]);
            });
            let mut pair = tables[order[1]].clone();
            merge(&mut pair, &tables[order[2]]);
            let mut grouped = tables[order[0]].clone();
            merge(&mut grouped, &pair);
            outcomes.extend([one_by_one, grouped]);
        }
        assert!(outcomes.windows(2).all(|two| two[0] == two[1]), "{outcomes:#?}");
        assert!(outcomes[0][1].removed, "removed for good, although another version is higher");
        assert_eq!(outcomes[0][0].name, "x");
        let again = merge(&mut outcomes[0].clone(), &outcomes[1]);
        assert_eq!(again, []);
    }

    #[test]
    fn each_change_is_reported_once() {
        let mut ours = vec![line(1, 1, false, "a")];
        let theirs = [line(1, 2, true, "a"), line(2, 1, false, "b"), line(3, 1, true, "c")];
        let changes = merge(&mut ours, &theirs);
        assert_eq!(changes, [TableChange::Removed(theirs[0].clone()), TableChange::Joined(theirs[1].clone())]);
        assert_eq!(merge(&mut ours, &theirs), []);
        assert_eq!(merge(&mut ours, &[line(2, 2, false, "b")]).len(), 1);
    }

    #[test]
    fn names_are_found_and_are_unique() {
        let lines = [line(1, 1, false, "a"), line(2, 1, true, "b"), line(3, 1, false, "c"), line(4, 1, false, "c")];
        assert_eq!(find(&lines, "a").map(|line| line.version), Ok(1));
        assert_eq!(find(&lines, &lines[0].uuid).map(|line| line.name.as_str()), Ok("a"));
        assert_eq!(find(&lines, "b").map_err(|error| error.kind), Err(Kind::NotFound));
        assert!(find(&lines, "c").expect_err("two").message.contains("two nodes"));
        assert!(find(&lines, &lines[3].uuid).is_ok());
        assert_eq!(check_admission(&lines, &line(5, 1, false, "a")).map_err(|error| error.kind), Err(Kind::Exists));
        assert_eq!(check_admission(&lines, &line(5, 1, false, "b")), Ok(()), "of one that was removed");
        for wrong in [line(2, 1, false, "d"), line(5, 1, true, "d"), line(5, 2, false, "d"), line(0, 1, false, "d")] {
            assert_eq!(
                check_admission(&lines, &wrong).map_err(|error| error.kind),
                Err(Kind::InvalidArgument),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn invalid_lines_are_refused() {
        let good = line(1, 1, false, "a");
        assert_eq!(check(std::slice::from_ref(&good)), Ok(()));
        let mut wrong = Vec::new();
        for change in [
            (|line: &mut MemberNode| line.uuid = "x".to_owned()) as fn(&mut MemberNode),
            |line| line.uuid = line.uuid.replace('-', ""),
            |line| line.name = "-".to_owned(),
            |line| line.api = "nobody".to_owned(),
            |line| line.data = "h:0".to_owned(),
            |line| line.key_sha256.truncate(63),
            |line| line.version = COUNTER_MAX + 1,
        ] {
            let mut line = good.clone();
            change(&mut line);
            assert!(check(std::slice::from_ref(&line)).is_err(), "{line:?}");
            wrong.push(line);
        }
        assert!(check(&vec![good; LINES_MAX + 1]).is_err());
    }
}
