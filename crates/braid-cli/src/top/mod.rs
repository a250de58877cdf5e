//! `braid top`: live rates and latencies of exports, arrays and disks.

pub mod rates;
mod screen;
mod view;

use super::color::{BAD, GOOD, paint};
use super::{ApiArgs, output};
use anyhow::Context;
use braid_api::{Activity, ErrorDetail, Kind, Status};
use braid_client::Client;
use clap::Args;
use rates::Rates;
use screen::{Key, Screen};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

/// Time between two checks for a signal.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Arguments of `braid top`.
#[derive(Args)]
pub struct TopArgs {
    /// The interval over which rates are averaged, from 100ms to 1h
    #[arg(long, short, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Print one interval and exit; implied by --json
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    api: ApiArgs,
}

fn interval(text: &str) -> Result<Duration, String> {
    let examples = "Examples: 500ms, 1s, 2.5s, 1m";
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let unit = units.into_iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (number, seconds) = unit.ok_or_else(|| format!("a unit is missing: ms, s, m or h. {examples}"))?;
    let number: f64 = number.trim().parse().map_err(|_| format!("{number:?} is not a number. {examples}"))?;
    let seconds = number * seconds;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err(format!("an interval is from 100ms to 1h. {examples}"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Runs the command.
///
/// # Errors
/// The daemon cannot be reached; there is no terminal.
pub fn run(args: &TopArgs) -> anyhow::Result<ExitCode> {
    // A worker thread drives connections and signals while this thread waits for keys.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start the runtime of the command")?;
    // Without progress: its line would appear on the screen.
    let client = args.api.endpoint.client()?;
    let first: Activity = runtime.block_on(client.get("/v1/activity"))?;
    if args.once || args.api.json {
        std::thread::sleep(args.interval);
        let second: Activity = runtime.block_on(client.get("/v1/activity"))?;
        output::show(args.api.json, &rates::between(&first, &second), |rates| {
            let columns = output::terminal_columns().unwrap_or_else(|| view::columns_wanted(rates));
            view::lines(rates, columns).join("\n") + "\n"
        });
        return Ok(ExitCode::SUCCESS);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(ErrorDetail::new(Kind::InvalidArgument, "there is no terminal to draw on")
            .remedy("use `braid top --once`, or --json")
            .into());
    }
    watch(args, &runtime, &client, first)
}

/// Draws until the user quits or a signal arrives.
fn watch(args: &TopArgs, runtime: &Runtime, client: &Client, mut last: Activity) -> anyhow::Result<ExitCode> {
    let ended = ended_by_signal(runtime)?;
    let mut screen = Screen::take().context("cannot set up the terminal")?;
    let mut rates = Rates::default();
    let mut head = Ok(runtime.block_on(client.get::<Status>("/v1/status"))?);
    let mut next = Instant::now() + args.interval;
    draw(&mut screen, args, &head, &rates)?;
    while !ended.load(Ordering::Relaxed) {
        let left = next.saturating_duration_since(Instant::now());
        match screen.key(left.min(SIGNAL_POLL_INTERVAL))? {
            Some(Key::Quit) => break,
            Some(Key::Redraw) => draw(&mut screen, args, &head, &rates)?,
            None => {}
        }
        if Instant::now() < next {
            continue;
        }
        next = Instant::now() + args.interval;
        let polled = runtime.block_on(async {
            let activity: Activity = client.get("/v1/activity").await?;
            Ok::<_, ErrorDetail>((activity, client.get::<Status>("/v1/status").await?))
        });
        // If the daemon stops, this waits until it is restarted or the user quits.
        head = match polled {
            Ok((activity, status)) => {
                rates = rates::between(&last, &activity);
                last = activity;
                Ok(status)
            }
            Err(error) => Err(error),
        };
        draw(&mut screen, args, &head, &rates)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a flag that becomes true when a signal requests the process to end.
fn ended_by_signal(runtime: &Runtime) -> anyhow::Result<Arc<AtomicBool>> {
    let ended = Arc::new(AtomicBool::new(false));
    let _inside = runtime.enter();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()] {
        let mut signal = signal(kind).context("cannot catch signals")?;
        let ended = Arc::clone(&ended);
        runtime.spawn(async move {
            signal.recv().await;
            ended.store(true, Ordering::Relaxed);
        });
    }
    Ok(ended)
}

fn draw(screen: &mut Screen, args: &TopArgs, head: &Result<Status, ErrorDetail>, rates: &Rates) -> anyhow::Result<()> {
    let (columns, _) = Screen::size();
    let mut lines = vec![headline(args, head, columns), String::new()];
    lines.extend(view::lines(rates, columns));
    screen.draw(&lines).context("the terminal is gone")
}

fn headline(args: &TopArgs, head: &Result<Status, ErrorDetail>, columns: usize) -> String {
    let (state, style) = match head {
        Ok(status) if status.attention.is_empty() => ("All is well.".to_owned(), GOOD),
        Ok(status) => (super::status::headline(status), BAD),
        Err(error) => (error.message.clone(), BAD),
    };
    let rest = format!("  every {:?}, q quits", args.interval);
    let state = output::truncate(&state, columns.saturating_sub(rest.chars().count()));
    let room = columns.saturating_sub(state.chars().count());
    paint(style, &state) + &output::truncate(&rest, room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_parsed() {
        assert_eq!(interval("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(interval("2.5s"), Ok(Duration::from_millis(2500)));
        assert_eq!(interval("1m"), Ok(Duration::from_secs(60)));
        for wrong in ["", "1", "s", "0s", "10ms", "2h", "-1s", "nans", "infs", "1x"] {
            assert!(interval(wrong).is_err_and(|error| error.contains("Examples: ")), "{wrong}");
        }
    }
}
