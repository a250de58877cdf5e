//! Tests `braid plan` from its arguments to its output.

use super::{PlanArgs, write_plan};
use braid_api::{ErrorDetail, Kind};
use clap::Parser;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    plan: PlanArgs,
}

fn parse(line: &str) -> Result<PlanArgs, clap::Error> {
    CommandLine::try_parse_from(line.split_whitespace()).map(|parsed| parsed.plan)
}

fn output(line: &str) -> String {
    let args = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    let mut out = Vec::new();
    write_plan(&args, &mut out).unwrap_or_else(|error| panic!("{line}: {error}"));
    String::from_utf8(out).expect("text")
}

fn json(line: &str) -> Value {
    serde_json::from_str(&output(line)).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Asserts that the output equals `snapshots/NAME.txt`.
macro_rules! snapshot {
    ($name:literal, $line:expr) => {
        let found = output($line);
        let expected = include_str!(concat!("snapshots/", $name, ".txt"));
        assert!(found == expected, "{} differs from snapshots/{}.txt:\n{found}", $line, $name);
    };
}

#[test]
fn tables() {
    snapshot!("three_disks", "plan 50G 100G 100G");
    snapshot!("three_disks_single_zone", "plan --zones single 50G 100G 100G");
    snapshot!("two_small_disks_odd_chunk", "plan --chunk 96K 300M 1000M");
    snapshot!("data_areas_raid10", "plan --level raid10 --copies 3 --data-sizes 1T 2T 2T 3T 3TB");
    snapshot!("many_disks_concat", "plan --level concat 1T 2T 3T 4T 5T 6T 7T 8T 9T 10T 11T");
}

#[test]
fn maps() {
    snapshot!("raid5_map", "plan --level raid5 --chunk 512K --data-sizes --map 5M 7M 7M");
    snapshot!("raid5_map_json", "plan --level raid5 --chunk 512K --data-sizes --map --json 5M 7M 7M");
    snapshot!("raid0_map_json", "plan --level raid0 --map --json 50G 100G 100G");
}

const LEVELS: [&str; 6] = ["concat", "raid0", "raid1", "raid10", "raid5", "raid6"];

#[test]
fn text_fits_eighty_columns() {
    let sizes: String = (1..=128).map(|disk| format!(" {}T", 100 + disk)).collect();
    let mut lines = vec![format!("plan{sizes}"), "plan 1025T 999P 3T 3T".to_owned(), "plan 1G".to_owned()];
    for level in LEVELS {
        lines.push(format!("plan --level {level} --map 50T 100T 100T 200T 200T"));
        lines.push(format!("plan --level {level} --map --chunk 96K --data-sizes 50M 100M 90M"));
    }
    for line in lines {
        for text in output(&line).lines() {
            assert!(text.chars().count() <= 80, "{line}: {text}");
        }
    }
}

/// The usable and the lost bytes add up to all bytes of the disks.
#[test]
fn usable_and_lost_bytes_add_up_to_the_disks() {
    let mut state = 7u64;
    let mut below = |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    for _ in 0..400 {
        let disks = 1 + below(7);
        let sizes: String =
            (0..disks).map(|_| format!(" {}", (2_000_000 + below(5_000_000)) * (1 + below(900)))).collect();
        let zones = if below(3) == 0 { "--zones single" } else { "" };
        let data = if below(2) == 0 { "--data-sizes" } else { "" };
        let line = format!("plan --json --chunk {}K {zones} {data}{sizes}", 4 * (1 + below(40)));
        let report = json(&line);
        let total: u64 =
            report["disks"].as_array().expect("disks").iter().map(|disk| number(&disk["size_bytes"])).sum();
        for level in report["levels"].as_array().expect("levels") {
            if level["possible"] == false {
                assert!(level["reason"].as_str().expect("a reason").contains("needs at least"), "{level}");
                continue;
            }
            let lost: u64 = level["lost"].as_array().expect("losses").iter().map(|loss| number(&loss["bytes"])).sum();
            assert_eq!(lost, number(&level["lost_bytes"]));
            assert_eq!(number(&level["array_size_bytes"]) + lost, total, "{line}: {level}");
            let zones: u64 =
                level["zones"].as_array().expect("zones").iter().map(|zone| number(&zone["array_size_bytes"])).sum();
            assert_eq!(zones, number(&level["array_size_bytes"]));
        }
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number, not {value}"))
}

/// Expands runs, as the README of the golden files explains them, block by block: (member, block) to (kind, array block).
fn expand(runs: &Value) -> HashMap<(u64, u64), (String, u64)> {
    let mut blocks = HashMap::new();
    for run in runs.as_array().expect("runs") {
        let field = |index: usize| number(&run[index]);
        let kind = run[4].as_str().expect("a kind");
        for k in 0..field(5) {
            for block in 0..field(3) {
                let array = field(2) + k * field(7) + if kind == "data" { block } else { 0 };
                let place = (field(0), field(1) + k * field(6) + block);
                assert!(blocks.insert(place, (kind.to_owned(), array)).is_none(), "{place:?} twice");
            }
        }
    }
    blocks
}

/// Returns the command line for an array of the golden files.
fn line_for(golden: &Value) -> String {
    let level = golden["level"].as_str().expect("a level");
    let mut line = format!("plan --map --json --data-sizes --level {level} --chunk {}", golden["chunk_bytes"]);
    let layout = match (level, golden["layout"].as_str()) {
        ("raid0", None) => Some("original"),
        ("raid0", Some("dangerous")) if golden["raid0_modparam"] == "default_layout=1" => Some("original"),
        ("raid0", Some("dangerous")) => Some("alternate"),
        (_, layout) => layout,
    };
    if let Some(layout) = layout {
        line += &format!(" --layout {layout}");
    }
    if level.starts_with("raid") && level != "raid0" {
        line += " --zones single";
    }
    let members = golden["members"].as_array().expect("members");
    line + &members.iter().map(|member| format!(" {}", member["data_size_bytes"])).collect::<String>()
}

/// The printed map is the layout that md used.
#[test]
fn the_map_is_the_layout_of_md() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/md-layouts");
    let mut compared = 0;
    for entry in std::fs::read_dir(folder).expect("the folder is in the checkout") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let golden: Value = serde_json::from_str(&std::fs::read_to_string(&path).expect("a file")).expect("JSON");
        let ours = json(&line_for(&golden));
        let (planned, of_md) = (expand(&ours["runs_strided"]), expand(&golden["runs_strided"]));
        let name = golden["name"].as_str().expect("a name");
        if golden["level"] == "raid1" {
            // md rounds to 64 KiB: the common part is the same.
            let common = of_md.iter().filter(|(_, content)| content.0 == "data");
            common.for_each(|(place, content)| assert_eq!(planned.get(place), Some(content), "{name}"));
        } else {
            assert!(planned == of_md, "{name}");
            assert_eq!(ours["array_size_bytes"], golden["array_size_bytes"], "{name}");
        }
        compared += 1;
    }
    assert_eq!(compared, 35);
}

/// A hundred members of 100 TiB, in chunks of 4 KiB: a few runs for each member.
#[test]
fn huge_disks_have_short_maps() {
    let sizes: String = (1..=100).map(|_| " 100T").collect();
    for level in LEVELS {
        let line = format!("plan --map --json --level {level} --chunk 4K{sizes}");
        let runs = json(&line)["runs_strided"].as_array().expect("runs").len();
        assert!(runs <= 100 * 202, "{level}: {runs}");
    }
}

fn refused(line: &str) -> ErrorDetail {
    let args = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    let mut out = Vec::new();
    let error = write_plan(&args, &mut out).expect_err(line);
    assert!(out.is_empty(), "{line}: nothing is printed before the error");
    error.downcast::<ErrorDetail>().unwrap_or_else(|error| panic!("{line}: {error:?}"))
}

#[test]
fn invalid_arguments_are_named_with_an_example() {
    let many: String = (0..129).map(|_| " 50G").collect();
    let cases = [
        ("--level raid6 50G 60G", "SIZE", "raid6 needs at least 3 members, there are 2"),
        ("--level raid0 50G 100K", "SIZE (disk 1)", "102400 bytes"),
        ("--level raid5 --data-sizes 1M 60K", "SIZE (disk 1)", "60.00 KiB are left for data"),
        ("--level raid0 --layout near 50G", "--layout", "alternate or original"),
        ("--layout original 50G", "--layout", "it needs --level"),
        ("--level raid1 --copies 2 50G 50G", "--copies", "only raid10 has a choice"),
        ("--level raid10 --copies 3 50G 50G", "--copies", "3 copies over 2 members"),
        ("--level raid10 --copies 1 50G 50G", "--copies", "1 copies over 2 members"),
        ("--level raid10 --copies 2 --layout n3 50G 50G 50G", "--copies", "the layout has 3"),
        ("--level raid0 --chunk 0 50G", "--chunk", "multiple of 4.00 KiB"),
        ("--data-sizes 15E", "SIZE", "more than 4.00 EiB"),
        (&many, "SIZE", "at most 128 disks, not 129"),
    ];
    for (rest, argument, reason) in cases {
        let error = refused(&format!("plan {rest}"));
        assert_eq!(error.kind, Kind::InvalidArgument);
        assert_eq!(error.context["argument"], argument, "{rest}: {error:?}");
        assert!(error.message.starts_with(argument) && error.message.contains(reason), "{rest}: {error:?}");
        let example = error.remedy.strip_prefix("Example: braid ").expect("an example").to_owned();
        output(&example);
    }
}

#[test]
fn errors_of_clap_name_the_argument() {
    let cases = [
        ("", "SIZE"),
        ("50X", "SIZE"),
        ("--chunk 5K 50G", "--chunk"),
        ("--chunk 65M 50G", "--chunk"),
        ("--zones both 50G", "--zones"),
        ("--level raid7 50G", "--level"),
        ("--level raid10 --layout far 50G", "--layout"),
        ("--map 50G", "--level"),
        ("--copies x 50G", "--copies"),
    ];
    for (rest, argument) in cases {
        let error = parse(&format!("plan {rest}")).expect_err(rest);
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(argument), "{rest}: {error}");
    }
}

#[test]
fn names_of_md_are_accepted() {
    let map = |line: &str| json(&format!("plan --map --json --data-sizes {line} 5M 7M 7M"))["runs_strided"].clone();
    assert_eq!(map("--level linear"), map("--level concat --layout linear"));
    assert_eq!(map("--level raid10 --layout n3"), map("--level raid10 --copies 3"));
    assert_eq!(map("--level raid1 --chunk 0"), map("--level raid1"));
    assert_ne!(map("--level raid10 --layout n3"), map("--level raid10 --layout n2"));
}

#[test]
fn a_disk_for_the_journal_is_validated() {
    let line = "plan --level raid5 --journal 256M 50G 100G 100G";
    let text = output(line);
    assert!(text.contains("Journal of raid5 and raid6: 64.06 MiB on a dedicated disk of 256.00 MiB."), "{text}");
    let journal = &json(&format!("{line} --json"))["journal"];
    assert_eq!(
        (&journal["disk_size_bytes"], &journal["journal_bytes"]),
        (&(256 << 20).into(), &((64 << 20) + (64 << 10)).into())
    );
    assert_eq!(json("plan --json 50G 100G")["journal"], Value::Null);
    assert!(refused("plan --level raid10 --journal 1G 50G 100G").message.contains("raid10 has no journal"));
    assert!(refused("plan --journal 1M 50G 100G").message.contains("1056768"));
    // The error names the minimum size, which is accepted.
    let said = refused("plan --journal 2M 50G 100G").message;
    let needed = said.split("one of ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    let needed = needed.unwrap_or_else(|| panic!("{said}"));
    assert!(refused(&format!("plan --journal {} 50G 100G", needed - 4096)).message.contains(&needed.to_string()));
    assert!(output(&format!("plan --journal {needed} 50G 100G")).contains("Journal of raid5"));
    // Small disks have a small journal.
    assert!(output("plan --journal 2M 300M 400M").contains("Journal of raid5"));
}
