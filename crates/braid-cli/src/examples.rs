//! Examples of every command: the table from which help, manual pages, usage errors and `docs/reference/cli` take them. A test parses each
//! example.

use super::aliases::verb_of;
use clap::Command;

/// Each command with its examples.
pub const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "serve",
        &[
            "braid serve",
            "braid serve --config ./braid.toml",
            "braid serve --state ./state --socket ./braid.sock --log-level debug",
            "braid serve --upgrade",
        ],
    ),
    (
        "status",
        &[
            "braid status",
            "braid status --check || echo look at it",
            "braid status --host https://node1:10870 --ca ca.crt --token-file token",
            "braid status --limits",
        ],
    ),
    ("top", &["braid top", "braid top --interval 5s", "braid top --once --json"]),
    ("events", &["braid events", "braid events --follow --json"]),
    ("doctor", &["braid doctor", "braid doctor --json"]),
    ("explain", &["braid explain array-degraded", "braid explain pool_nearly_full --json", "braid explain"]),
    (
        "plan",
        &[
            "braid plan 50G 100G 100G",
            "braid plan --level 5 50G 100G 100G",
            "braid plan --level raid5 --journal 256M 50G 100G 100G",
            "braid plan --level raid5 --chunk 64K --map --json 50G 100G 100G",
        ],
    ),
    ("disk list", &["braid disk list", "braid disk list --json"]),
    ("disk examine", &["braid disk examine /dev/sdb", "braid disk examine ./a.img --json"]),
    ("disk wipe", &["braid disk wipe /dev/sdb", "braid disk wipe ./a.img --yes"]),
    (
        "array create",
        &[
            "braid array create fast --level raid0 /dev/sdb /dev/sdc /dev/sdd",
            "braid array create trial --level raid0 --chunk 128K file:a.img,size=50G file:b.img,size=100G",
            "braid array create slow --level concat 'throttled(mem:1G,iops=3000)' mem:2G",
            "braid array create safe --level raid1 --spare /dev/sdd /dev/sdb /dev/sdc",
            "braid array create twice --level mirror /dev/sdb /dev/sdc",
            "braid array create parity --level raid5 --spare /dev/sde /dev/sdb /dev/sdc /dev/sdd",
            "braid array create logged --level raid5 --journal /dev/nvme0n1p4 /dev/sdb /dev/sdc /dev/sdd",
            "braid array create double --level raid6 --chunk 128K /dev/sdb /dev/sdc /dev/sdd /dev/sde /dev/sdf /dev/sdg",
            "braid array create both --level raid10 --copies 3 --start-degraded auto /dev/sdb /dev/sdc /dev/sdd /dev/sde",
        ],
    ),
    ("array list", &["braid array list", "braid array list -o wide", "braid array list --json"]),
    ("array show", &["braid array show fast"]),
    ("array rename", &["braid array rename fast faster"]),
    ("array stop", &["braid array stop fast"]),
    (
        "array assemble",
        &[
            "braid array assemble",
            "braid array assemble fast --disk ./moved/a.img",
            "braid array assemble safe --degraded",
        ],
    ),
    (
        "array import-md",
        &[
            "braid array import-md /dev/sdb /dev/sdc /dev/sdd",
            "braid array import-md --name old /dev/sdb /dev/sdc /dev/sdd",
            "braid array import-md --name old --layout original ./a.img ./b.img",
        ],
    ),
    ("array fail", &["braid array fail safe /dev/sdc", "braid array fail safe 1"]),
    ("array remove", &["braid array remove safe 1", "braid array remove safe 1 --copy"]),
    ("array replace", &["braid array replace safe 0 /dev/sdd", "braid array replace safe /dev/sda"]),
    (
        "array add",
        &[
            "braid array add safe /dev/sdc",
            "braid array add safe file:c.img,size=50G",
            "braid array add safe /dev/sdd --copy",
        ],
    ),
    (
        "array journal",
        &[
            "braid array journal parity /dev/nvme0n1p4",
            "braid array journal parity file:/nvme/parity.journal,size=256M",
            "braid array journal parity --members",
        ],
    ),
    ("array spare", &["braid array spare safe /dev/sdd", "braid array spare safe /dev/sdd --remove"]),
    (
        "array grow",
        &[
            "braid array grow fast /dev/sdd --dry-run",
            "braid array grow fast /dev/sdd",
            "braid array grow safe",
            "braid array grow safe /dev/sde /dev/sdf",
        ],
    ),
    ("array check", &["braid array check safe", "braid array check safe --wait --json"]),
    ("array repair", &["braid array repair safe", "braid array repair safe --from-data --wait"]),
    (
        "pool create",
        &[
            "braid pool create tank /dev/sdb /dev/sdc",
            "braid pool create tank /dev/sdb /dev/sdc /dev/sdd --level raid5",
            "braid pool create tank safe",
            "braid pool create trial file:a.img,size=50G file:b.img,size=100G",
        ],
    ),
    ("pool list", &["braid pool list", "braid pool list --no-headers"]),
    ("pool show", &["braid pool show tank"]),
    ("pool rename", &["braid pool rename tank deep"]),
    ("pool delete", &["braid pool delete tank", "braid pool delete tank --force --yes"]),
    (
        "volume create",
        &[
            "braid volume create tank/db 100G",
            "braid volume create tank/home --size 10G --mount /srv/home --mkfs xfs",
            "braid volume create tank/guest 20G --limit iops=500,bw=50M",
            "braid volume create db 100G --replicas node1/tank,node2/tank --witness node3",
        ],
    ),
    ("volume set", &["braid volume set tank/db --limit iops=3000,bw=125M", "braid volume set tank/db --limit none"]),
    (
        "volume list",
        &[
            "braid volume list",
            "braid volume list tank -o name",
            "braid volume list tank --json",
            "braid volume list --all",
        ],
    ),
    ("volume show", &["braid volume show tank/db"]),
    ("volume attach", &["braid volume attach db", "braid volume attach db --force"]),
    ("volume detach", &["braid volume detach db", "braid volume detach db --force"]),
    ("volume rename", &["braid volume rename tank/db sales"]),
    ("pool start", &["braid pool start tank", "braid pool start tank --force", "braid pool start tank --give-up"]),
    ("pool add", &["braid pool add tank /dev/sdd", "braid pool add tank fast"]),
    ("pool check", &["braid pool check tank", "braid pool check tank --repair", "braid pool check tank --give-up"]),
    ("pool dump", &["braid pool dump /dev/sdb", "braid pool dump ./a.img --records --json"]),
    (
        "pool remove",
        &[
            "braid pool remove tank /dev/sdb",
            "braid pool remove tank /dev/sdb --cancel",
            "braid pool remove tank 1 --force",
        ],
    ),
    (
        "volume resize",
        &[
            "braid volume resize tank/db 200G",
            "braid volume resize tank/db +10G",
            "braid volume resize tank/db +10G --fs",
            "braid volume resize tank/db -10G",
            "braid volume resize tank/db 50G --force --yes",
        ],
    ),
    ("volume move", &["braid volume move tank/db --place on=/dev/sdc", "braid volume move tank/db --place spread"]),
    ("volume compact", &["braid volume compact tank/db"]),
    ("volume flatten", &["braid volume flatten tank/trial", "braid volume flatten tank/trial --cancel"]),
    ("volume clone", &["braid volume clone tank/db@monday tank/trial"]),
    (
        "volume rollback",
        &[
            "braid volume rollback tank/db@monday",
            "braid volume rollback tank/db @monday",
            "braid volume rollback tank/db tank/db@monday --yes",
        ],
    ),
    ("volume delete", &["braid volume delete tank/db", "braid volume delete tank/trial --force --yes"]),
    (
        "snapshot create",
        &[
            "braid snapshot create tank/db@monday",
            "braid snapshot create tank/db@monday tank/log@monday",
            "braid snapshot create tank/db@monday --freeze /srv/db",
        ],
    ),
    ("snapshot list", &["braid snapshot list", "braid snapshot list tank/db"]),
    ("snapshot show", &["braid snapshot show tank/db@monday"]),
    ("snapshot rename", &["braid snapshot rename tank/db@monday first"]),
    (
        "snapshot policy",
        &["braid snapshot policy tank/db --every 1h --keep 24", "braid snapshot policy tank/db --none"],
    ),
    (
        "snapshot diff",
        &[
            "braid snapshot diff tank/db@monday",
            "braid snapshot diff tank/db@monday @tuesday --json",
            "braid snapshot diff tank/db@monday tank/trial",
        ],
    ),
    ("snapshot delete", &["braid snapshot delete tank/db@monday"]),
    (
        "mount",
        &[
            "braid mount tank/db /srv/db --mkfs",
            "braid mount tank/db /srv/db -o noatime,discard",
            "braid mount tank/db@monday /mnt --read-only -o ro,noload",
        ],
    ),
    ("umount", &["braid umount /srv/db"]),
    (
        "node init",
        &[
            "braid node init node1 --listen 192.0.2.1",
            "braid node init node1 --listen node1.example:10870 --data 198.51.100.1",
        ],
    ),
    ("node invite", &["braid node invite", "braid node invite --expires 10m --json"]),
    ("node join", &["braid node join TOKEN --name node2 --listen 192.0.2.2"]),
    ("node list", &["braid node list", "braid node list --json"]),
    ("node show", &["braid node show node2"]),
    ("node remove", &["braid node remove node2", "braid node remove node2 --force --yes"]),
    ("node renew", &["braid node renew", "braid node renew node2"]),
    ("replica list", &["braid replica list"]),
    ("replica show", &["braid replica show db"]),
    ("replica delete", &["braid replica delete db"]),
    ("replica add", &["braid replica add db node4/tank", "braid replica add db --witness node5"]),
    ("replica remove", &["braid replica remove db node3"]),
    ("replica rebuild", &["braid replica rebuild db node3", "braid replica rebuild db node3 --pool fast"]),
    ("job list", &["braid job list"]),
    ("job watch", &["braid job watch", "braid job watch safe:1"]),
    ("job pause", &["braid job pause safe:1"]),
    ("job resume", &["braid job resume safe:1"]),
    ("job limit", &["braid job limit safe:1 20M", "braid job limit safe:1 0"]),
    ("job cancel", &["braid job cancel safe:1"]),
    ("array delete", &["braid array delete fast", "braid array delete fast --yes"]),
    (
        "export add",
        &[
            "braid export add fast",
            "braid export add fast --nbd unix:/run/braid/fast.sock",
            "braid export add fast --nbd tcp:127.0.0.1:10809 --name fast-ro --read-only",
            "braid export add tank/db --nbd unix:/run/braid/db.sock",
            "braid export add tank/db --nbd",
            "braid export add tank/db --ublk --queues 2 --depth 256",
            "braid export add tank/db@monday --nbd unix:/run/braid/db.sock",
            "braid export add tank/db --fuse /srv/db.img --name db-file",
        ],
    ),
    ("export set", &["braid export set fast --max-connections 8 --limit iops=3000,bw=125M"]),
    ("export list", &["braid export list"]),
    ("export show", &["braid export show fast"]),
    ("export rename", &["braid export rename fast faster"]),
    ("export remove", &["braid export remove fast"]),
    ("export repair", &["braid export repair --dry-run", "braid export repair"]),
    ("demo", &["braid demo", "braid demo --keep"]),
    (
        "bench",
        &[
            "braid bench --pattern random --op read --block-size 4K --depth 128 null:1T",
            "braid bench --depth 1..128 --html depth.html mem:1G 'raid0(mem:1G,mem:1G,chunk=64K)'",
            "braid bench --level raid0 --op write --verify --time 10s file:a.img,size=1G file:b.img,size=2G",
            "braid bench --depth 64 --jobs 4 'nbd+unix:///fast?socket=/run/braid/fast.sock'",
            "braid bench --op mixed --pattern zipf --rate 5000 fast",
            "braid bench --profile disk-aggregation --html disks.html",
            "braid bench --profile queue-depth --emit-fio",
        ],
    ),
    (
        "completions",
        &[
            "braid completions bash > /etc/bash_completion.d/braid",
            "braid completions zsh > ~/.zfunc/_braid",
            "braid completions fish > ~/.config/fish/completions/braid.fish",
        ],
    ),
    ("man", &["braid man --dir /usr/local/share/man/man1", "braid man --dir ./man"]),
    ("schema", &["braid schema", "braid schema array list"]),
];

/// Returns the command line with its examples in every `--help`.
#[must_use]
pub fn added_to(command: Command) -> Command {
    EXAMPLES.iter().fold(command, |command, (path, examples)| {
        let text = examples.iter().fold(String::from("Examples:"), |text, example| text + "\n  " + example);
        at(command, &path.split(' ').collect::<Vec<_>>(), &|command| command.after_help(text.clone()))
    })
}

fn at(command: Command, path: &[&str], change: &dyn Fn(Command) -> Command) -> Command {
    match path {
        [] => change(command),
        [first, rest @ ..] => {
            let rest: Vec<String> = rest.iter().map(|word| (*word).to_owned()).collect();
            command
                .mut_subcommand(*first, |inner| at(inner, &rest.iter().map(String::as_str).collect::<Vec<_>>(), change))
        }
    }
}

/// Returns the first example of the command that these arguments begin with.
pub fn for_arguments(arguments: impl Iterator<Item = String>) -> Option<&'static str> {
    let words: Vec<String> = arguments.filter(|word| !word.starts_with('-')).take(2).collect();
    let matching =
        |typed: &str| EXAMPLES.iter().find(|(path, _)| *path == typed || path.starts_with(&format!("{typed} ")));
    let found = match words.as_slice() {
        [] => None,
        [noun] => matching(noun),
        [noun, verb, ..] => {
            let of = |verb: &str| matching(&format!("{noun} {verb}"));
            let by_alias = || verb_of(verb, |verb| of(verb).is_some()).and_then(of);
            of(verb).or_else(by_alias).or_else(|| matching(noun))
        }
    };
    found.and_then(|(_, examples)| examples.first().copied())
}
