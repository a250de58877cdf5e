//! The options of commands that send requests to a daemon.

use crate::endpoint::EndpointArgs;
use braid_client::Client;
use braid_terminal::listing::ListStyle;
use braid_terminal::progress::Waiting;
use clap::Args;
use serde::Serialize;

/// The options of every command that sends requests to a daemon: which daemon, and how its replies are printed.
#[derive(Args, Clone, Debug)]
pub struct ApiArgs {
    /// Print one JSON document instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    /// Which daemon.
    pub endpoint: EndpointArgs,
}

impl ApiArgs {
    /// Returns a client of that daemon, which shows what the command waits for.
    ///
    /// # Errors
    /// The configuration or an option is wrong; a file cannot be read.
    pub fn client(&self) -> anyhow::Result<Client> {
        Ok(self.endpoint.client()?.observed(Waiting::for_reply))
    }
}

/// The options of every `list`: which daemon, and how the list is printed.
#[derive(Args, Clone, Debug)]
pub struct ApiListArgs {
    #[command(flatten)]
    /// How the list is printed.
    style: ListStyle,
    #[command(flatten)]
    /// Which daemon, and whether JSON is printed.
    api: ApiArgs,
}

impl ApiListArgs {
    /// Returns a client of that daemon.
    ///
    /// # Errors
    /// See [`ApiArgs::client`].
    pub fn client(&self) -> anyhow::Result<Client> {
        self.api.client()
    }

    /// Prints a list: see [`ListStyle::print`].
    pub fn print<'a, T: Serialize>(
        &self,
        list: &T,
        names: impl Iterator<Item = &'a str>,
        incomplete: &[String],
        people: impl FnOnce(ListStyle) -> String,
    ) {
        self.style.or_json(self.api.json).print(list, names, incomplete, people);
    }
}
