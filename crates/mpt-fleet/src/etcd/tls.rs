//! TLS with members of etcd: the files of the configuration, and what an error means for them.

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::Failure;
use crate::config;

/// The files with which this host and the members prove who they are.
pub(super) struct Tls {
    pub(super) connector: TlsConnector,
    ca: PathBuf,
    roots: Arc<RootCertStore>,
    own: Option<OwnCertificate>,
}

struct OwnCertificate {
    file: PathBuf,
    chain: Vec<CertificateDer<'static>>,
}

impl Tls {
    /// Reads the files.
    pub(super) fn new(config: &config::Etcd) -> Result<Self, Failure> {
        let Some(ca) = &config.ca else {
            let hint = "ca = \"/etc/mpt/fleet/ca.pem\"";
            return Err(Failure::new("etcd.endpoints has https, and etcd.ca is missing", hint));
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(ca)? {
            roots.add(certificate).map_err(|error| unreadable(ca, &error))?;
        }
        let roots = Arc::new(roots);
        let builder = ClientConfig::builder().with_root_certificates(Arc::clone(&roots));
        let (client, own) = match (&config.certificate, &config.key) {
            (Some(file), Some(key)) => {
                let chain = certificates(file)?;
                let text = fs::read(key).map_err(|error| unreadable(key, &error))?;
                let private = PrivateKeyDer::from_pem_slice(&text).map_err(|error| unreadable(key, &error))?;
                let client = builder.with_client_auth_cert(chain.clone(), private).map_err(|error| {
                    let what = format!("{} does not fit {}: {error}", key.display(), file.display());
                    Failure::new(what, "etcd.key = the private key of etcd.certificate")
                })?;
                (client, Some(OwnCertificate { file: file.clone(), chain }))
            }
            _ => (builder.with_no_client_auth(), None),
        };
        Ok(Self { connector: TlsConnector::from(Arc::new(client)), ca: ca.clone(), roots, own })
    }

    /// Returns what an error of a connection to a member means; `None` if it is none of TLS.
    pub(super) fn explain(&self, member: &str, error: &(dyn Error + 'static)) -> Option<Failure> {
        Some(match cause(error)? {
            rustls::Error::InvalidCertificate(why) => self.explain_theirs(member, why),
            rustls::Error::AlertReceived(alert) => self.explain_refusal(member, &format!("{alert:?}")),
            rustls::Error::InvalidMessage(_) => {
                let hint = "http:// in etcd.endpoints; or --cert-file and --key-file for etcd";
                Failure::new(format!("etcd at {member} does not speak TLS"), hint)
            }
            other => Failure::new(
                format!("TLS with etcd at {member} fails: {other}"),
                "etcd.ca, etcd.certificate and etcd.key in fleet.toml; the log of etcd has the other side",
            ),
        })
    }

    fn explain_theirs(&self, member: &str, why: &CertificateError) -> Failure {
        use CertificateError as Why;
        let ca = self.ca.display();
        match why {
            Why::UnknownIssuer | Why::BadSignature => Failure::new(
                format!("the certificate of etcd at {member} is not of the authority in {ca}"),
                "etcd.ca = the file with the authority that signed the certificates of the members",
            ),
            Why::NotValidForName | Why::NotValidForNameContext { .. } => Failure::new(
                format!("the certificate of etcd at {member} is for another host"),
                "it needs the address or name of etcd.endpoints as subjectAltName",
            ),
            Why::Expired | Why::ExpiredContext { .. } => Failure::new(
                format!("the certificate of etcd at {member} has expired"),
                "renew it there; is the clock of this host right?",
            ),
            other => Failure::new(
                format!("the certificate of etcd at {member} is refused: {other}"),
                "docs/guide/fleet.md has the commands that make one; is the clock of this host right?",
            ),
        }
    }

    /// A member reports every fault of a certificate by the same alert, so the file is examined here.
    fn explain_refusal(&self, member: &str, alert: &str) -> Failure {
        let Some(own) = &self.own else {
            return Failure::new(
                format!("etcd at {member} demands a client certificate, and fleet.toml names none ({alert})"),
                "certificate = \"FILE\" and key = \"FILE\" in [etcd]",
            );
        };
        let file = own.file.display();
        match self.own_fault(own) {
            Some(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => Failure::new(
                format!("etcd at {member} refuses the certificate {file}, which has expired"),
                "renew it, and restart mpt-fleet; is the clock of this host right?",
            ),
            Some(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => Failure::new(
                format!("etcd at {member} refuses the certificate {file}, which is not valid yet"),
                "is the clock of this host right?",
            ),
            _ => Failure::new(
                format!("etcd at {member} refuses the certificate {file} ({alert})"),
                "it must be signed by the authority in --trusted-ca-file of etcd, with extendedKeyUsage clientAuth",
            ),
        }
    }

    /// Returns what is wrong with our certificate. Its time is checked before its authority, which may be another one
    /// than that of the members.
    fn own_fault(&self, own: &OwnCertificate) -> Option<CertificateError> {
        let (end, intermediates) = own.chain.split_first()?;
        let verifier = WebPkiClientVerifier::builder(Arc::clone(&self.roots)).build().ok()?;
        match verifier.verify_client_cert(end, intermediates, UnixTime::now()) {
            Err(rustls::Error::InvalidCertificate(fault)) => Some(fault),
            _ => None,
        }
    }
}

/// Returns the error of TLS that an error wraps.
fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref() {
            return Some(error);
        }
        // The source of an error of I/O is that of the error inside.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = inner.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
}

/// Returns the certificates in a file, at least one.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let text = fs::read(file).map_err(|error| unreadable(file, &error))?;
    let all = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(|error| unreadable(file, &error))?;
    if all.is_empty() { Err(unreadable(file, &"there is no certificate in it")) } else { Ok(all) }
}

fn unreadable(file: &Path, error: &dyn std::fmt::Display) -> Failure {
    let hint = "PEM files, readable for the user of mpt-fleet";
    Failure::new(format!("cannot read {}: {error}", file.display()), hint)
}
