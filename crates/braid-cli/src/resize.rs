//! `braid volume resize`: a new size, or by how much the present one changes.

use super::confirm::confirm;
use super::{Ask, output, segment};
use braid_api::{ErrorDetail, Kind, ResizeVolume, Volume};
use braid_client::Client;
use braid_geometry::units::{format_size, parse_size};
use clap::Args;

/// Arguments of `braid volume resize`.
#[derive(Args)]
pub struct ResizeArgs {
    /// The volume, by name or UUID
    #[arg(value_name = "POOL/VOLUME", value_parser = super::volume::volume_or_name)]
    volume: String,
    /// Its new size; or by how much the present one changes: +10G, -10G
    #[arg(value_parser = new_size, allow_hyphen_values = true)]
    size: NewSize,
    /// Make it smaller although it has data beyond the new end: they are lost (its snapshots keep what they have)
    #[arg(long)]
    force: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    ask: Ask,
}

/// A size as it is typed, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NewSize {
    /// The size itself.
    Of(u64),
    /// So much more than the present size.
    More(u64),
    /// So much less.
    Less(u64),
}

/// Reads a size or a change of it, for clap.
fn new_size(text: &str) -> Result<NewSize, String> {
    // What begins with - is taken for a size, also an option that is misspelt.
    if text.starts_with("--") {
        return Err("there is no such option; a size is 50G, +10G or -10G, for example".to_owned());
    }
    let read = |size: &str| {
        parse_size(size).map_err(|error| format!("{error}; or +10G, -10G for a change of the present size"))
    };
    if let Some(more) = text.strip_prefix('+') {
        return read(more).map(NewSize::More);
    }
    if let Some(less) = text.strip_prefix('-') {
        return read(less).map(NewSize::Less);
    }
    read(text).map(NewSize::Of)
}

impl NewSize {
    /// The size that is meant for a volume of `present` bytes.
    ///
    /// # Errors
    /// The change leaves nothing, or more than can be counted.
    fn of(self, volume: &str, present: u64) -> Result<u64, ErrorDetail> {
        let size = match self {
            NewSize::Of(bytes) => Some(bytes),
            NewSize::More(bytes) => present.checked_add(bytes),
            NewSize::Less(bytes) => present.checked_sub(bytes).filter(|left| *left > 0),
        };
        size.ok_or_else(|| {
            let why = match self {
                NewSize::Less(bytes) => format!("{} less would leave nothing", format_size(bytes)),
                NewSize::Of(bytes) | NewSize::More(bytes) => format!("{} more is too much", format_size(bytes)),
            };
            let message = format!("volume {volume} has {}: {why}", format_size(present));
            ErrorDetail::new(Kind::InvalidArgument, message)
                .with("volume", volume)
                .remedy(format!("write the size that it is to have, for example: braid volume resize {volume} 100G"))
        })
    }
}

fn path(volume: &str) -> String {
    format!("/v1/volumes/{}", segment(volume))
}

/// Gives a volume another size.
///
/// # Errors
/// The daemon's; the size cannot be; what would be lost is not confirmed.
pub async fn resize(args: ResizeArgs) -> anyhow::Result<()> {
    let client = args.ask.client()?;
    let size_bytes = wanted(&args, &client).await?;
    let body = ResizeVolume { size_bytes, force: args.force };
    let volume: Volume = client.post(&format!("{}/resize", path(&args.volume)), &body).await?;
    output::show(args.ask.json, &volume, resized);
    Ok(())
}

/// The size that is asked for, in bytes. Where data may be lost by force, that is confirmed first.
async fn wanted(args: &ResizeArgs, client: &Client) -> anyhow::Result<u64> {
    if let (NewSize::Of(bytes), false) = (args.size, args.force) {
        return Ok(bytes);
    }
    let volume: Volume = client.get(&path(&args.volume)).await?;
    let size_bytes = args.size.of(&volume.name, volume.size_bytes)?;
    if args.force && size_bytes < volume.size_bytes {
        let what = format!("What volume {} has beyond {} will be lost", volume.name, format_size(size_bytes));
        confirm(&what, args.yes)?;
    }
    Ok(size_bytes)
}

fn resized(volume: &Volume) -> String {
    let mut text = format!("volume {} has {} now\n", volume.name, format_size(volume.size_bytes));
    if !volume.exports.is_empty() {
        text.push_str("clients that are connected to its exports learn it when they connect again; beyond the end of a smaller one they get errors\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    const GIB: u64 = 1 << 30;

    #[test]
    fn sizes_and_changes_are_read() {
        for (text, size) in [
            ("50G", NewSize::Of(50 * GIB)),
            ("4096", NewSize::Of(4096)),
            ("+1G", NewSize::More(GIB)),
            ("+1.5G", NewSize::More(3 * GIB / 2)),
            ("-1G", NewSize::Less(GIB)),
            ("-1GB", NewSize::Less(1_000_000_000)),
        ] {
            assert_eq!(new_size(text), Ok(size), "{text}");
        }
        for wrong in ["", "+", "-", "+-1G", "-+1G", "++1G", "+x", "-x", "G", "1G+", "--1G", "--forse"] {
            let error = new_size(wrong).expect_err(wrong);
            assert!(error.contains("50G") && error.contains("-10G"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_change_is_of_the_present_size() {
        let of = |size: NewSize, present| size.of("tank/db", present).map_err(|error| error.message);
        assert_eq!(of(NewSize::Of(GIB), 5), Ok(GIB));
        assert_eq!(of(NewSize::More(GIB), 3 * GIB), Ok(4 * GIB));
        assert_eq!(of(NewSize::Less(GIB), 3 * GIB), Ok(2 * GIB));
        assert_eq!(of(NewSize::Less(0), GIB), Ok(GIB));
        let nothing = "volume tank/db has 1.00 GiB: 1.00 GiB less would leave nothing".to_owned();
        assert_eq!(of(NewSize::Less(GIB), GIB), Err(nothing));
        for size in [NewSize::Less(2 * GIB), NewSize::More(u64::MAX)] {
            assert!(of(size, GIB).is_err(), "{size:?}");
        }
    }

    #[derive(Parser)]
    struct Resize {
        #[command(flatten)]
        args: ResizeArgs,
    }

    #[test]
    fn a_size_may_begin_with_a_sign_wherever_options_stand() {
        for line in ["tank/db -1G --force --yes", "tank/db --force -1G --yes", "--yes --force tank/db -1G"] {
            let words = std::iter::once("resize").chain(line.split(' '));
            let Resize { args } = Resize::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!((args.volume.as_str(), args.size), ("tank/db", NewSize::Less(GIB)), "{line}");
            assert!(args.force && args.yes, "{line}");
        }
        let size = |line: &str| {
            let words = std::iter::once("resize").chain(line.split(' '));
            Resize::try_parse_from(words).map(|resize| resize.args.size).map_err(|error| error.to_string())
        };
        assert_eq!(size("tank/db +1G"), Ok(NewSize::More(GIB)));
        assert_eq!(size("tank/db 1G"), Ok(NewSize::Of(GIB)));
        let error = size("tank/db --forse").expect_err("there is no such option");
        assert!(error.contains("--forse") && error.contains("no such option"), "{error}");
        assert!(size("-1G tank/db").is_err());
    }
}
