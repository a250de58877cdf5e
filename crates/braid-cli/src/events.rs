//! `braid events`.

use super::{ApiArgs, color, output};
use anyhow::Context;
use braid_api::{ErrorDetail, Event, EventList, Kind};
use clap::Args;
use hyper::Method;
use std::process::ExitCode;

/// Maximum length of an event's line in the stream, in bytes.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Arguments of `braid events`.
#[derive(Args)]
pub struct EventsArgs {
    /// Follow new events until interrupted
    #[arg(long, short)]
    follow: bool,
    /// Only events after the one with this number
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    after: u64,
    #[command(flatten)]
    api: ApiArgs,
}

/// Runs the command. With `--follow` and `--json`, each event is one line of JSON.
pub async fn run(args: EventsArgs) -> anyhow::Result<ExitCode> {
    let client = args.api.client()?;
    if !args.follow {
        let list: EventList = client.get(&format!("/v1/events?after={}", args.after)).await?;
        output::show(args.api.json, &list, |list| {
            if list.events.is_empty() { "no events\n".to_owned() } else { list.events.iter().map(line).collect() }
        });
        return Ok(ExitCode::SUCCESS);
    }
    let path = format!("/v1/events?follow=true&after={}", args.after);
    let mut response = client.send::<()>(Method::GET, &path, None).await?;
    let mut pending = Vec::new();
    while let Some(bytes) = response.chunk().await.context("the daemon closed the event stream")? {
        pending.extend_from_slice(&bytes);
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let text: Vec<u8> = pending.drain(..=end).collect();
            if let Some(data) = text.strip_prefix(b"data:") {
                let event: Event = serde_json::from_slice(data).context("an event cannot be parsed")?;
                if args.api.json { output::json_line(&event) } else { output::text(&line(&event)) }
            }
        }
        anyhow::ensure!(pending.len() <= LINE_BYTES_MAX, "a line of the event stream is too long");
    }
    Err(ErrorDetail::new(Kind::Stopping, "the daemon stopped").remedy("start it again with `braid serve`").into())
}

fn line(event: &Event) -> String {
    format!(
        "{:>6}  {}  {}  {}\n",
        event.sequence,
        output::utc_time(event.time_unix_ms),
        color::state(&format!("{:<7}", event.severity.word())),
        event.message
    )
}
