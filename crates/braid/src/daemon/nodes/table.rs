//! The table of nodes: what each node knows of all, and how two of them become one.
//!
//! What it promises: of two lines of a node one always counts, whoever compares them and in whichever order, so that nodes
//! which have told each other everything know the same. Who was once removed never comes back under the same identity.

use super::place::HostPort;
use super::token::from_hex;
use braid_api::limits::NODES_MAX;
use braid_api::{ErrorDetail, Kind, MemberNode, names};
use braid_format::limits::COUNTER_MAX;
use uuid::Uuid;

/// Lines of a table, with those of nodes that were removed.
pub const LINES_MAX: usize = 1024;

/// What another table has taught.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// There is one more node.
    Joined(MemberNode),
    /// A node was removed.
    Removed(MemberNode),
    /// Something about a node has changed.
    Changed(MemberNode),
}

/// Takes up what `theirs` knows better.
pub fn merge(ours: &mut Vec<MemberNode>, theirs: &[MemberNode]) -> Vec<News> {
    let mut news = Vec::new();
    for line in theirs {
        match ours.iter_mut().find(|known| known.uuid == line.uuid) {
            None => {
                // What was removed is remembered, too: somebody may still have an older line.
                if !line.removed {
                    news.push(News::Joined(line.clone()));
                }
                ours.push(line.clone());
            }
            Some(known) if counts(known) < counts(line) => {
                news.push(match (known.removed, line.removed) {
                    (false, true) => News::Removed(line.clone()),
                    _ => News::Changed(line.clone()),
                });
                *known = line.clone();
            }
            Some(_) => {}
        }
    }
    ours.sort_by(|a, b| a.uuid.cmp(&b.uuid));
    news
}

/// Lines of one node are compared by this: a total order, so that the outcome is the same everywhere.
fn counts(line: &MemberNode) -> (bool, u64, &MemberNode) {
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

/// The same of one line.
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
    for place in [&line.api, &line.data] {
        HostPort::parse(place, 0)
            .ok()
            .filter(|place| place.port != 0)
            .ok_or_else(|| wrong(format!("{place:?} is no address")))?;
    }
    if from_hex::<32>(&line.key_sha256).is_none() {
        return Err(wrong("a digest of a key has 64 hexadecimal digits".to_owned()));
    }
    Ok(())
}

fn wrong(why: String) -> ErrorDetail {
    ErrorDetail::new(Kind::InvalidArgument, format!("the table of nodes cannot be right: {why}"))
        .remedy("are the daemons of one version? (`braid --version`)")
}

/// Those that were not removed.
pub fn present(lines: &[MemberNode]) -> impl Iterator<Item = &MemberNode> {
    lines.iter().filter(|line| !line.removed)
}

/// The node of this name or UUID.
///
/// # Errors
/// [`Kind::NotFound`]; two nodes have the name, which both took while they did not know of each other.
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

/// Whether this one may become a node.
///
/// # Errors
/// Its name is taken, or there are too many.
pub fn admits(lines: &[MemberNode], new: &MemberNode) -> Result<(), ErrorDetail> {
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

    /// All orders and groupings of three tables that contradict each other end in one.
    #[test]
    fn whoever_hears_everything_knows_the_same() {
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
    fn news_are_told_once() {
        let mut ours = vec![line(1, 1, false, "a")];
        let theirs = [line(1, 2, true, "a"), line(2, 1, false, "b"), line(3, 1, true, "c")];
        let news = merge(&mut ours, &theirs);
        assert_eq!(news, [News::Removed(theirs[0].clone()), News::Joined(theirs[1].clone())]);
        assert_eq!(merge(&mut ours, &theirs), []);
        assert_eq!(merge(&mut ours, &[line(2, 2, false, "b")]).len(), 1);
    }

    #[test]
    fn names_are_found_and_taken_once() {
        let lines = [line(1, 1, false, "a"), line(2, 1, true, "b"), line(3, 1, false, "c"), line(4, 1, false, "c")];
        assert_eq!(find(&lines, "a").map(|line| line.version), Ok(1));
        assert_eq!(find(&lines, &lines[0].uuid).map(|line| line.name.as_str()), Ok("a"));
        assert_eq!(find(&lines, "b").map_err(|error| error.kind), Err(Kind::NotFound));
        assert!(find(&lines, "c").expect_err("two").message.contains("two nodes"));
        assert!(find(&lines, &lines[3].uuid).is_ok());
        assert_eq!(admits(&lines, &line(5, 1, false, "a")).map_err(|error| error.kind), Err(Kind::Exists));
        assert_eq!(admits(&lines, &line(5, 1, false, "b")), Ok(()), "of one that was removed");
        for wrong in [line(2, 1, false, "d"), line(5, 1, true, "d"), line(5, 2, false, "d"), line(0, 1, false, "d")] {
            assert_eq!(admits(&lines, &wrong).map_err(|error| error.kind), Err(Kind::InvalidArgument), "{wrong:?}");
        }
    }

    #[test]
    fn lines_that_cannot_be_are_refused() {
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
