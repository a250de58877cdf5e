//! Which daemon a command connects to: the daemon at a socket, or one on another machine.

use braid_api::{ErrorDetail, Kind};
use braid_client::{Client, Remote};
use braid_config::API_PORT;
use braid_config::paths::DaemonPaths;
use braid_tls::ClientFiles;
use clap::Args;
use std::path::{Path, PathBuf};

/// Which daemon to connect to. An option takes precedence over an environment variable.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Which daemon")]
pub struct EndpointArgs {
    /// The daemon's socket [default: BRAID_SOCKET, else the socket in braid.toml, else the user's default socket]
    #[arg(long, value_name = "PATH", conflicts_with = "host")]
    pub socket: Option<PathBuf>,
    /// A daemon on another machine, over TLS: https://NODE:10870 [BRAID_HOST]
    #[arg(long, value_name = "URL", value_parser = host)]
    pub host: Option<(String, u16)>,
    /// The certificate authority of that daemon (PEM) [BRAID_CA; default: the system's trusted authorities]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// A file with the token for that daemon [BRAID_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The client certificate for that daemon (PEM) [BRAID_CERT]
    #[arg(long, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// The private key of the client certificate (PEM) [BRAID_KEY]
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

impl EndpointArgs {
    /// Returns a client of that daemon.
    ///
    /// # Errors
    /// The configuration or an option is wrong; a file cannot be read.
    pub fn client(&self) -> Result<Client, ErrorDetail> {
        match self.remote(&variable)? {
            Some(remote) => Client::at_host(&remote),
            None => Ok(Client::at_socket(&DaemonPaths::find_socket(self.socket.as_deref())?)),
        }
    }

    /// Whether the daemon is on another machine.
    ///
    /// # Errors
    /// BRAID_HOST or an option is wrong.
    pub fn is_remote(&self) -> Result<bool, ErrorDetail> {
        Ok(self.remote(&variable)?.is_some())
    }

    /// Refuses a relative path if the daemon is on another machine: the path would name another file there, or none.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`]; BRAID_HOST or an option is wrong.
    pub fn refuse_relative(&self, path: &Path) -> Result<(), ErrorDetail> {
        if path.is_absolute() {
            return Ok(());
        }
        match self.remote(&variable)? {
            None => Ok(()),
            Some(Remote { host, .. }) => Err(ErrorDetail::new(
                Kind::InvalidArgument,
                format!(
                    "the path {} begins in the working folder of this machine, and the daemon is on {host}",
                    path.display()
                ),
            )
            .with("path", path.display())
            .remedy("write the path as it is on that machine, from the root. Example: /srv/a.img")),
        }
    }

    /// Returns the daemon on another machine, if one is named.
    fn remote(&self, variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Remote>, ErrorDetail> {
        let wrong = |message: String, remedy: &str| ErrorDetail::new(Kind::InvalidArgument, message).remedy(remedy);
        let chosen = match (&self.host, &self.socket) {
            (Some(host), _) => Some(host.clone()),
            (None, Some(_)) => None,
            (None, None) => variable("BRAID_HOST")
                .map(|text| {
                    host(&text).map_err(|why| {
                        wrong(format!("BRAID_HOST: {why}"), "unset BRAID_HOST to use the daemon of this machine")
                    })
                })
                .transpose()?,
        };
        let Some((host, port)) = chosen else {
            let options = [&self.ca, &self.token_file, &self.cert, &self.key];
            if options.into_iter().any(Option::is_some) {
                return Err(wrong(
                    "certificate authorities, tokens and client certificates are for a daemon on another machine, and no host is named"
                        .to_owned(),
                    "name it with --host https://NODE:10870 or BRAID_HOST",
                ));
            }
            return Ok(None);
        };
        let file = |option: &Option<PathBuf>, name: &str| option.clone().or_else(|| variable(name).map(PathBuf::from));
        let identity = match (file(&self.cert, "BRAID_CERT"), file(&self.key, "BRAID_KEY")) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return Err(wrong("a certificate needs its key".to_owned(), "add --key FILE")),
            (None, Some(_)) => return Err(wrong("a key needs its certificate".to_owned(), "add --cert FILE")),
        };
        let files = ClientFiles { authorities: file(&self.ca, "BRAID_CA"), identity };
        Ok(Some(Remote { host, port, files, token_file: file(&self.token_file, "BRAID_TOKEN_FILE") }))
    }
}

/// Returns an environment variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Parses the URL of a daemon: host and port.
fn host(text: &str) -> Result<(String, u16), String> {
    let examples = "Examples: https://node1:10870, node1.example, https://[2001:db8::7]";
    if text.starts_with("http://") {
        return Err(format!("the API is never offered on a network without TLS. {examples}"));
    }
    let rest = text.strip_prefix("https://").unwrap_or(text);
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = match rest.strip_prefix('[') {
        Some(inner) => {
            let (host, port) = inner.split_once(']').ok_or_else(|| format!("a [ without its ]. {examples}"))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(format!("{host:?} is not an IPv6 address. {examples}"));
            }
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':').unwrap_or("?")) })
        }
        None => match rest.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        },
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if host.is_empty() || !host.chars().all(fits) {
        return Err(format!("{text:?} names no host. {examples}"));
    }
    let port = match port {
        None => API_PORT,
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => port,
            _ => return Err(format!("the port of {text:?} is not a number from 1 to 65535. {examples}")),
        },
    };
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_parsed() {
        let check = |text: &str, name: &str, port: u16| assert_eq!(host(text), Ok((name.to_owned(), port)), "{text}");
        check("https://node1:10870", "node1", 10870);
        check("https://node1", "node1", 10870);
        check("https://node1/", "node1", 10870);
        check("node1.example:7", "node1.example", 7);
        check("192.0.2.7", "192.0.2.7", 10870);
        check("https://[::1]:7/", "::1", 7);
        check("[::1]", "::1", 10870);
        for wrong in [
            "",
            "http://node1",
            "https://",
            "node1:",
            "node1:0",
            "node1:x",
            "a b",
            "[::1",
            "[::1]7",
            "[x]",
            "https://u@h",
            "https://h/v1",
        ] {
            assert!(host(wrong).is_err_and(|error| error.contains("Examples: ")), "{wrong}");
        }
    }

    fn remote(endpoint: &EndpointArgs, variables: &[(&str, &str)]) -> Result<Option<Remote>, ErrorDetail> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        endpoint.remote(&find)
    }

    #[test]
    fn options_take_precedence_over_variables() {
        let variables = [("BRAID_HOST", "node1"), ("BRAID_CA", "/v/ca"), ("BRAID_TOKEN_FILE", "/v/token")];
        let found = remote(&EndpointArgs::default(), &variables).expect("right").expect("another machine");
        assert_eq!((found.host.as_str(), found.port), ("node1", 10870));
        assert_eq!(found.files.authorities, Some("/v/ca".into()));
        assert_eq!(found.token_file, Some("/v/token".into()));
        let socket = EndpointArgs { socket: Some("/s".into()), ..EndpointArgs::default() };
        assert_eq!(remote(&socket, &variables), Ok(None));
        let options =
            EndpointArgs { host: Some(("node2".into(), 7)), ca: Some("/o/ca".into()), ..EndpointArgs::default() };
        let found = remote(&options, &variables).expect("right").expect("another machine");
        assert_eq!((found.host.as_str(), found.port, found.files.authorities), ("node2", 7, Some("/o/ca".into())));
        assert_eq!(remote(&EndpointArgs::default(), &[("BRAID_CA", "/v/ca")]), Ok(None));
    }

    #[test]
    fn relative_paths_are_for_this_machine() {
        let remote = EndpointArgs { host: Some(("node2".into(), 7)), ..EndpointArgs::default() };
        let error = remote.refuse_relative(Path::new("./a.img")).expect_err("the folder is ambiguous");
        assert!(error.message.contains("./a.img") && error.message.contains("node2"), "{error}");
        assert!(error.remedy.contains("from the root"), "{error}");
        assert_eq!(remote.refuse_relative(Path::new("/srv/a.img")), Ok(()));
        let local = EndpointArgs { socket: Some("/s".into()), ..EndpointArgs::default() };
        assert_eq!(local.refuse_relative(Path::new("a.img")), Ok(()));
    }

    #[test]
    fn a_certificate_without_its_key_is_refused() {
        let host = || Some(("n".to_owned(), 1));
        assert!(
            remote(&EndpointArgs { host: host(), cert: Some("c".into()), ..EndpointArgs::default() }, &[]).is_err()
        );
        assert!(remote(&EndpointArgs { host: host(), key: Some("k".into()), ..EndpointArgs::default() }, &[]).is_err());
        assert!(remote(&EndpointArgs { ca: Some("c".into()), ..EndpointArgs::default() }, &[]).is_err());
        assert!(remote(&EndpointArgs::default(), &[("BRAID_HOST", "http://n")]).is_err());
    }
}
