//! `braid volume resize`: sets a new size, or changes the present size by an amount.

use super::confirm::confirm;
use super::mount::grow;
use super::object_names::volume_or_name;
use super::{ApiArgs, output, segment};
use braid_api::{ErrorDetail, Kind, ResizeVolume, Volume};
use braid_client::Client;
use braid_geometry::units::{format_size, parse_size};
use clap::Args;

/// Arguments of `braid volume resize`.
#[derive(Args)]
pub struct ResizeArgs {
    /// The volume, by name or UUID
    #[arg(value_name = "POOL/VOLUME", value_parser = volume_or_name)]
    volume: String,
    /// The new size, or the change of the present size: +10G, -10G
    #[arg(value_parser = new_size, allow_hyphen_values = true)]
    size: NewSize,
    /// Shrink it although it has data beyond the new end, which is lost (its snapshots keep theirs)
    #[arg(long)]
    force: bool,
    /// Grow the file system, too, that is mounted from it on this machine (ext4, xfs, btrfs); with the present size only the file system grows
    #[arg(long, conflicts_with = "force")]
    fs: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    api: ApiArgs,
}

/// The size argument, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NewSize {
    /// An absolute size.
    Of(u64),
    /// An increase of the present size.
    More(u64),
    /// A decrease of the present size.
    Less(u64),
}

/// Parses a size or a change of the size, for clap.
fn new_size(text: &str) -> Result<NewSize, String> {
    // An argument that begins with - is parsed as a size, even a misspelt option.
    if text.starts_with("--") {
        return Err("there is no such option; sizes are written like 50G, +10G, -10G".to_owned());
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
    /// Returns the new size of a volume that has `present` bytes.
    ///
    /// # Errors
    /// The change leaves nothing, or the new size overflows.
    fn of(self, volume: &str, present: u64) -> Result<u64, ErrorDetail> {
        let size = match self {
            NewSize::Of(bytes) => Some(bytes),
            NewSize::More(bytes) => present.checked_add(bytes),
            NewSize::Less(bytes) => present.checked_sub(bytes).filter(|left| *left > 0),
        };
        size.ok_or_else(|| {
            let why = match self {
                NewSize::Less(bytes) => format!("{} less would leave nothing", format_size(bytes)),
                NewSize::Of(bytes) | NewSize::More(bytes) => format!("{} more is too large", format_size(bytes)),
            };
            let message = format!("volume {volume} has {}: {why}", format_size(present));
            ErrorDetail::new(Kind::InvalidArgument, message)
                .with("volume", volume)
                .remedy(format!("name the new size. Example: braid volume resize {volume} 100G"))
        })
    }
}

fn path(volume: &str) -> String {
    format!("/v1/volumes/{}", segment(volume))
}

/// Resizes a volume.
///
/// # Errors
/// The daemon's error; the size is invalid; the loss of data is not confirmed; the file system cannot grow.
pub async fn resize(args: ResizeArgs) -> anyhow::Result<()> {
    let client = args.api.client()?;
    let size_bytes = wanted(&args, &client).await?;
    let growing = match args.fs {
        true => {
            let volume: Volume = client.get(&path(&args.volume)).await?;
            Some(grow::find(&args.api, &client, &volume, size_bytes).await?)
        }
        false => None,
    };
    let body = ResizeVolume { size_bytes, force: args.force };
    let volume: Volume = client.post(&format!("{}/resize", path(&args.volume)), &body).await?;
    let grown = match growing {
        Some(growing) => Some(growing.grow(&volume).await?),
        None => None,
    };
    output::show(args.api.json, &volume, |volume| resized(volume, grown.as_deref()));
    Ok(())
}

/// Returns the requested size, in bytes. Asks for confirmation first if data may be lost.
async fn wanted(args: &ResizeArgs, client: &Client) -> anyhow::Result<u64> {
    if let (NewSize::Of(bytes), false) = (args.size, args.force) {
        return Ok(bytes);
    }
    let volume: Volume = client.get(&path(&args.volume)).await?;
    let size_bytes = args.size.of(&volume.name, volume.size_bytes)?;
    if args.force && size_bytes < volume.size_bytes {
        let what = format!("Data of volume {} beyond {} will be lost", volume.name, format_size(size_bytes));
        confirm(&what, args.yes)?;
    }
    Ok(size_bytes)
}

fn resized(volume: &Volume, grown: Option<&str>) -> String {
    let mut text = format!("resized volume {} to {}\n", volume.name, format_size(volume.size_bytes));
    if let Some(grown) = grown {
        text.push_str(grown);
    } else if !volume.exports.is_empty() {
        text.push_str("connected clients of its exports see the new size when they reconnect; beyond the end of a smaller volume they get errors\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    const GIB: u64 = 1 << 30;

    #[test]
    fn sizes_and_changes_are_parsed() {
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
