//! Profiles whose targets are replicated volumes. The daemons of the nodes are started for the run, on loopback, and are killed at its end.

use std::path::Path;
use std::time::Duration;

use braid_api::{ErrorDetail, Kind};

use super::super::cluster::Cluster;
use super::super::pattern::{Mix, Order};
use super::super::plan::LabelledTarget;
use super::super::process::{Folder, bench_anywhere};
use super::super::published::PROFILES_OF_NODES;
use super::super::target::Target;
use super::{BOTH, Profile, point};

/// The size of a volume, a whole number of MiB. All of it is written before it is measured.
const SIZE: &str = "64M";
const SIZE_MIB: &str = "64";

/// Returns disks in memory, throttled like the published disks. Their sizes differ, because the disks of a pool must have different names.
fn cloud_disks(count: u32) -> Vec<String> {
    let disk = |mib| format!("throttled(faulty(mem:{mib}M,write-delay=941us),iops=3000,bw=125M,latency=638us)");
    (128..128 + count).map(disk).collect()
}

/// The nodes, and the targets on them.
pub struct Nodes {
    /// The targets, in the order of the profile.
    pub targets: Vec<LabelledTarget>,
    _clusters: Vec<Cluster>,
    _memory: Option<Folder>,
}

impl Nodes {
    /// Starts the nodes of a profile, and creates its volumes.
    ///
    /// # Errors
    /// Disks are named, or a daemon does not start.
    pub fn start(name: &str, disks_named: bool) -> anyhow::Result<Nodes> {
        if disks_named {
            let message = format!("profile {name} makes nodes of its own, with disks in memory, and takes none");
            return Err(ErrorDetail::new(Kind::InvalidArgument, message)
                .remedy(
                    "leave them out; to measure a volume of your own, name its export: nbd+unix:///NAME?socket=PATH",
                )
                .into());
        }
        let nodes = if name == PROFILES_OF_NODES[0] { aggregation()? } else { engine()? };
        for named in &nodes.targets {
            fill(&named.target.to_string())?;
        }
        Ok(nodes)
    }
}

fn named(label: &str, uri: String) -> anyhow::Result<LabelledTarget> {
    Ok(LabelledTarget { label: label.to_owned(), target: Target::parse(&uri)? })
}

fn fill(uri: &str) -> anyhow::Result<()> {
    let load = ["--pattern", "sequential", "--op", "write", "--block", "1M", "--depth", "8", "--count", SIZE_MIB];
    bench_anywhere(&[&load[..], &["--force", uri]].concat()).map(drop)
}

const ENGINE: [&str; 5] = [
    "frontend only",
    "one replica, in memory",
    "three replicas, in memory",
    "one replica, on files",
    "three replicas, on files",
];

fn engine() -> anyhow::Result<Nodes> {
    let memory = Folder::below(Path::new("/dev/shm"))?;
    let mem = Cluster::start(3, true, |_| vec!["mem:512M".to_owned()])?;
    let files =
        Cluster::start(3, true, |number| vec![format!("file:{},size=1G", memory.join(&format!("disk{number}")))])?;
    mem.node(0).cli(&["array", "create", "nothing", "--level", "concat", "null:1T"])?;
    let targets = vec![
        named(ENGINE[0], mem.export("nothing")?)?,
        named(ENGINE[1], mem.volume("one", SIZE, &[1])?)?,
        named(ENGINE[2], mem.volume("three", SIZE, &[0, 1, 2])?)?,
        named(ENGINE[3], files.volume("one", SIZE, &[1])?)?,
        named(ENGINE[4], files.volume("three", SIZE, &[0, 1, 2])?)?,
    ];
    Ok(Nodes { targets, _clusters: vec![mem, files], _memory: Some(memory) })
}

const AGGREGATION: [&str; 2] = ["single disk, three replicas", "pool of three disks, three replicas"];

fn aggregation() -> anyhow::Result<Nodes> {
    let single = Cluster::start(3, true, |_| cloud_disks(1))?;
    let three = Cluster::start(3, true, |_| cloud_disks(3))?;
    let targets = vec![
        named(AGGREGATION[0], single.volume("one", SIZE, &[0, 1, 2])?)?,
        named(AGGREGATION[1], three.volume("three", SIZE, &[0, 1, 2])?)?,
    ];
    Ok(Nodes { targets, _clusters: vec![single, three], _memory: None })
}

/// Returns the points and labels of a profile.
pub(super) fn profile(name: &str) -> Profile {
    let mut points = Vec::new();
    let mut add = |tag: &str, mix: Mix, order, block, depth, jobs| {
        points.push((format!("{tag} {}", mix.word()), point(order, mix, block, depth, jobs)));
    };
    for mix in BOTH {
        if name == PROFILES_OF_NODES[0] {
            add("random", mix, Order::Random, 4 << 10, 128, 8);
            add("sequential", mix, Order::Sequential, 128 << 10, 16, 4);
            add("latency", mix, Order::Random, 4 << 10, 1, 1);
        } else {
            add("random", mix, Order::Random, 4 << 10, 128, 1);
            add("sequential", mix, Order::Sequential, 1 << 20, 8, 1);
        }
    }
    let labels = if name == PROFILES_OF_NODES[0] { &AGGREGATION[..] } else { &ENGINE[..] };
    Profile {
        name: if name == PROFILES_OF_NODES[0] { PROFILES_OF_NODES[0] } else { PROFILES_OF_NODES[1] },
        disks: Vec::new(),
        targets: labels.iter().map(|label| (*label, (|_| String::new()) as super::Make)).collect(),
        points,
        short: Duration::from_millis(1500),
        slices: 3,
        full: (Duration::from_secs(10), Duration::from_secs(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published;

    #[test]
    fn published_figures_belong_to_existing_targets_and_points() {
        for (name, figures) in [(PROFILES_OF_NODES[0], 12), (PROFILES_OF_NODES[1], 12)] {
            let profile = profile(name);
            assert_eq!(profile.name, name);
            let labels: Vec<&str> = profile.targets.iter().map(|(label, _)| *label).collect();
            let tags: Vec<&str> = profile.points.iter().map(|(tag, _)| tag.as_str()).collect();
            let known = published::of(name);
            let published = known.figures(&labels, &tags);
            assert_eq!(published.len(), figures);
            for figure in &published {
                let is_of = |target| (0..tags.len()).any(|point| figure.is_of(target, point));
                assert!((0..labels.len()).any(is_of), "{name}: {figure:?}");
            }
            assert!(!known.notes.is_empty() && !known.source.is_empty());
        }
    }
}
