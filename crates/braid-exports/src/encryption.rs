//! TLS of exports: the daemon's certificate, and which exports use it.
//!
//! Guarantees: an export that other hosts can reach is encrypted, or an operator has waived that explicitly. A renewed
//! certificate is used from the next connection on.

use braid_api::{ErrorDetail, ExportTls, Kind};
use braid_config::Config;
use braid_tls::{ClientCertificates, ServerFiles, ServerTls};
use clap::Args;
use std::path::PathBuf;
use std::sync::Arc;

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
    /// Accept clients over TLS only with a certificate of this authority (PEM)
    #[arg(long, value_name = "FILE")]
    nbd_client_ca: Option<PathBuf>,
    /// TLS of exports on TCP that are added without --tls: off, optional or required [default: required with a
    /// certificate, off without]
    #[arg(long, value_name = "MODE", value_parser = ExportTls::parse)]
    nbd_tls: Option<ExportTls>,
}

/// The TLS settings of exports.
#[derive(Clone, Debug, Default)]
pub struct Encryption {
    /// The certificate; none: there is no TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// The mode of exports on TCP that are added without one.
    default: ExportTls,
}

impl Encryption {
    /// Combines options and configuration, and reads the files.
    ///
    /// # Errors
    /// TLS is wanted without a certificate; only one of certificate and key is named; a file is invalid.
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

    /// Returns the mode of an export that is added; `requested`: the mode in the request.
    ///
    /// # Errors
    /// The mode needs a certificate, and there is none.
    pub(crate) fn of_export(&self, requested: Option<ExportTls>, is_tcp: bool) -> Result<ExportTls, ErrorDetail> {
        let mode = requested.unwrap_or(if is_tcp { self.default } else { ExportTls::Off });
        self.tls_of(mode)?;
        Ok(mode)
    }

    /// Returns the certificate for a mode.
    ///
    /// # Errors
    /// The mode needs a certificate, and there is none.
    pub(crate) fn tls_of(&self, mode: ExportTls) -> Result<Option<Arc<ServerTls>>, ErrorDetail> {
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
