//! TLS of exports: the certificate that the daemon shows, and which exports use it.
//!
//! What it promises: an export that others can reach is encrypted, or somebody has said that it need not be. A renewed
//! certificate is used from the next connection on.

use super::control::Control;
use super::expiry;
use braid_api::{Attention, ErrorDetail, ExportTls, Kind};
use braid_config::Config;
use braid_tls::{ClientCertificates, ServerFiles, ServerTls};
use clap::Args;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at the files.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Under which names troubles are kept.
const FILES_TROUBLE: &str = "nbd certificate";
const EXPIRY_TROUBLE: &str = "nbd expiry";

/// Arguments of `braid serve` about exports over TLS.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Exports over TLS")]
pub struct NbdArgs {
    /// The certificate that exports show, with those between it and its authority (PEM)
    #[arg(long, value_name = "FILE")]
    nbd_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE")]
    nbd_key: Option<PathBuf>,
    /// Let clients in over TLS only with a certificate of this authority (PEM)
    #[arg(long, value_name = "FILE")]
    nbd_client_ca: Option<PathBuf>,
    /// TLS of exports on TCP that are added without --tls: off, optional or required [default: required with a
    /// certificate, off without]
    #[arg(long, value_name = "MODE", value_parser = ExportTls::parse)]
    nbd_tls: Option<ExportTls>,
}

/// How exports use TLS.
#[derive(Clone, Debug, Default)]
pub struct Encryption {
    /// The certificate; none: there is no TLS.
    tls: Option<Arc<ServerTls>>,
    /// For exports on TCP that are added without a word about it.
    default: ExportTls,
}

impl Encryption {
    /// What options and configuration say together; reads the files.
    ///
    /// # Errors
    /// TLS is wanted and there is no certificate; half of what it needs is named; a file is wrong.
    pub fn of(args: NbdArgs, config: &Config) -> Result<Encryption, ErrorDetail> {
        let file = config.nbd.clone();
        let client_authorities = args.nbd_client_ca.or(file.client_ca);
        let mode = args.nbd_tls.or(file.tls);
        let refused =
            |message: &str, remedy: &str| Err(ErrorDetail::new(Kind::InvalidArgument, message).remedy(remedy));
        let (certificate, key) = match (args.nbd_cert.or(file.cert), args.nbd_key.or(file.key)) {
            (Some(certificate), Some(key)) => (certificate, key),
            (None, None) if client_authorities.is_none() && mode.unwrap_or_default() == ExportTls::Off => {
                return Ok(Encryption::default());
            }
            _ => {
                return refused(
                    "TLS of exports needs a certificate and its key",
                    "name both, with --nbd-cert FILE --nbd-key FILE or as nbd.cert and nbd.key in the configuration",
                );
            }
        };
        let client_certificates = match client_authorities {
            Some(_) => ClientCertificates::Required,
            None => ClientCertificates::None,
        };
        let tls = ServerTls::load(ServerFiles { certificate, key, client_authorities, client_certificates })?;
        Ok(Encryption { tls: Some(Arc::new(tls)), default: mode.unwrap_or(ExportTls::Required) })
    }

    /// The mode of an export that is added; `asked`: what was said about it.
    ///
    /// # Errors
    /// There is no certificate.
    pub fn of_export(&self, asked: Option<ExportTls>, is_tcp: bool) -> Result<ExportTls, ErrorDetail> {
        let mode = asked.unwrap_or(if is_tcp { self.default } else { ExportTls::Off });
        self.tls_of(mode)?;
        Ok(mode)
    }

    /// The certificate for a mode.
    ///
    /// # Errors
    /// It wants one and there is none.
    pub fn tls_of(&self, mode: ExportTls) -> Result<Option<Arc<ServerTls>>, ErrorDetail> {
        match (&self.tls, mode) {
            (None, ExportTls::Optional | ExportTls::Required) => Err(ErrorDetail::new(
                Kind::InvalidArgument,
                "the export is to use TLS, and the daemon has no certificate",
            )
            .remedy("start it with --nbd-cert FILE --nbd-key FILE (or nbd.cert and nbd.key in the configuration)")),
            (tls, _) => Ok(tls.clone()),
        }
    }
}

/// Looks at the files until the daemon stops; what has changed holds for the next connections.
pub async fn keep_fresh(control: Arc<Control>, encryption: Encryption) {
    let Some(tls) = encryption.tls else { return };
    let mut stopping = control.stopping();
    let mut expiry = None;
    let mut anew = true;
    loop {
        if anew {
            let tls = Arc::clone(&tls);
            expiry = tokio::task::spawn_blocking(move || expiry::of_file(tls.certificate())).await.ok().flatten();
            control.set_nbd_certificate_expiry(expiry.unwrap_or(0));
        }
        let meaning = "Clients refuse one that has expired.";
        let attention = expiry
            .and_then(|expiry| expiry::attention("the certificate of exports", meaning, tls.certificate(), expiry));
        control.set_trouble(EXPIRY_TROUBLE, attention);
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        let looking = Arc::clone(&tls);
        let Ok(looked) = tokio::task::spawn_blocking(move || looking.refresh(false)).await else { continue };
        anew = matches!(looked, Ok(true));
        let path = tls.certificate().display().to_string();
        match looked {
            Ok(false) => {}
            Ok(true) => {
                control.set_trouble(FILES_TROUBLE, None);
                let message = format!("the certificate of exports was read anew: {path}");
                control.events().info("nbd_certificate_renewed", message, &[("path", &path)]);
            }
            Err(error) => {
                let message = format!("{}; exports go on with the old certificate", error.message);
                control.events().error("nbd_certificate_wrong", &message, &[("path", &path)]);
                let attention = Attention {
                    subject: "daemon".to_owned(),
                    message,
                    meaning: String::new(),
                    remedy: error.remedy,
                    commands: vec![format!("ls -l {path}")],
                };
                control.set_trouble(FILES_TROUBLE, Some(attention));
            }
        }
    }
}
