//! The certificate of a server for paths over TLS. The two ends authenticate each other inside, so it proves nothing
//! that the tunnel relies on: a client accepts any, or the one whose fingerprint is configured.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::digest;
use base64ct::{Base64, Encoding as _};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use zeroize::Zeroizing;

use super::provider;
use super::validity::not_after;
use crate::Failure;
use crate::config::File;
use crate::files::Files;

/// The SHA-256 hash of a certificate.
pub type Fingerprint = [u8; 32];

/// A certificate with its chain, and its private key, both in PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificates, that of the server first.
    pub chain: String,
    /// The private key.
    pub key: Zeroizing<String>,
}

impl Identity {
    /// Reads those that a configuration names; `None` if it names none.
    pub fn configured(files: &Files, file: &File) -> Option<Result<Self, Failure>> {
        let (chain, key) = file.tls.as_ref()?.files.as_ref()?;
        Some(Self::read(files, chain, key))
    }

    /// Reads those of an administrator.
    ///
    /// # Errors
    /// A file cannot be read, or has none, or the key is that of another certificate.
    pub fn read(files: &Files, chain: &Path, key: &Path) -> Result<Self, Failure> {
        let read = |path: &Path| {
            files.read(path, MAX_PEM).map(|file| Zeroizing::new(file.text.clone())).map_err(|error| {
                Failure::new(format!("cannot read {}: {error}", path.display()))
                    .hint("the tunnel reads it whenever it changes: root, or the user of the unit, must be able to")
            })
        };
        let identity = Self { chain: read(chain)?.to_string(), key: read(key)? };
        identity.check().map_err(|why| {
            let files = format!("{} and {}", chain.display(), key.display());
            Failure::new(format!("{files}: {why}")).hint("PEM, as certbot writes fullchain.pem and privkey.pem")
        })?;
        Ok(identity)
    }

    /// Fails if a connection could not be served with it.
    fn check(&self) -> Result<(), String> {
        let (chain, key) = self.parse()?;
        CertifiedKey::from_der(chain, key, &provider()).map(drop).map_err(|error| match error {
            Error::InconsistentKeys(_) => "the private key is not that of the certificate".to_owned(),
            error => error.to_string(),
        })
    }

    /// Reads the self-signed one of this tunnel, or makes it.
    ///
    /// # Errors
    /// It cannot be read, made or written. Clients may know its fingerprint, so a file that cannot be read is not
    /// replaced.
    pub fn own(file: &Path) -> Result<Self, Failure> {
        match fs::read(file).map(Zeroizing::new) {
            Ok(bytes) => match Self::from_own_file(&bytes) {
                Some(identity) => return Ok(identity),
                None => tracing::warn!(file = %file.display(), "not a certificate with its key: another one is made"),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(Failure::new(format!("cannot read {}, the certificate for TLS: {error}", file.display()))
                    .hint("it must belong to the user of the tunnel, who owns the folder: chown it, or remove it"));
            }
        }
        let identity = Self::new()?;
        let write = || -> io::Result<()> {
            file.parent().map_or(Ok(()), fs::create_dir_all)?;
            let next = file.with_extension("tls.new");
            match fs::remove_file(&next) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&next)?;
            new.write_all(identity.key.as_bytes()).and_then(|()| new.write_all(identity.chain.as_bytes()))?;
            new.sync_all()?;
            fs::rename(&next, file)
        };
        write().map_err(|error| {
            Failure::new(format!("cannot write {}, the certificate for TLS: {error}", file.display()))
                .hint("MPT_STATE_DIR names another folder; or certificate and key in [tls]")
        })?;
        Ok(identity)
    }

    /// Reads the contents of the file of [`Self::own`].
    fn from_own_file(bytes: &[u8]) -> Option<Self> {
        let (key, chain) = std::str::from_utf8(bytes).ok()?.split_once(CERTIFICATE)?;
        let identity = Self { chain: format!("{CERTIFICATE}{chain}"), key: Zeroizing::new(key.to_owned()) };
        identity.parse().is_ok().then_some(identity)
    }

    /// Makes a self-signed one.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub(super) fn new() -> Result<Self, Failure> {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]);
        let made = made.map_err(|error| Failure::new(format!("cannot make a certificate: {error}")))?;
        let key = Zeroizing::new(made.signing_key.serialize_der());
        Ok(Self { chain: pem("CERTIFICATE", made.cert.der()), key: Zeroizing::new(pem("PRIVATE KEY", &key)) })
    }

    /// Returns the certificates and the key.
    ///
    /// # Errors
    /// The description of what is missing or wrong.
    pub fn parse(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
        let chain = CertificateDer::pem_slice_iter(self.chain.as_bytes()).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| format!("no certificate in PEM: {error}"))?;
        if chain.is_empty() {
            return Err("there is no certificate".to_owned());
        }
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes());
        Ok((chain, key.map_err(|error| format!("no private key in PEM: {error}"))?))
    }

    /// Returns the last second in which the server's certificate is valid, counted from 1970.
    pub fn not_after(&self) -> Option<i64> {
        self.parse().ok().and_then(|(chain, _)| not_after(chain.first()?))
    }

    /// Returns the fingerprint of the server's certificate.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.parse().ok().and_then(|(chain, _)| chain.first().map(fingerprint))
    }
}

/// Encodes as RFC 7468 has it.
fn pem(label: &str, der: &[u8]) -> String {
    let text = Base64::encode_string(der);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line).into_owned() + "\n");
    format!("-----BEGIN {label}-----\n{}-----END {label}-----\n", lines.collect::<String>())
}

fn fingerprint(certificate: &CertificateDer<'_>) -> Fingerprint {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, certificate).as_ref());
    hash
}

/// Formats a fingerprint as it is written in the configuration.
pub fn hex(fingerprint: &Fingerprint) -> String {
    fingerprint.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Accepts the certificate with this fingerprint, or any. Checks that the server has its private key in both cases.
#[derive(Debug)]
pub struct Verifier {
    expected: Option<Fingerprint>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    /// Makes one.
    pub fn new(expected: Option<Fingerprint>, provider: Arc<CryptoProvider>) -> Self {
        Self { expected, provider }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.expected {
            Some(expected) if expected != fingerprint(certificate) => {
                Err(CertificateError::ApplicationVerificationFailure.into())
            }
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Bytes of a file that are read. A chain has some 6 kB.
const MAX_PEM: u64 = 1 << 17;
/// The line with which the certificate begins, behind the key in the same file.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_own_certificate_is_made_once_and_only_its_owner_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state").join("mpt0.tls");
        let first = Identity::own(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let again = Identity::own(&file).unwrap();
        assert_eq!(first.fingerprint().unwrap(), again.fingerprint().unwrap());
        fs::write(&file, "damaged").unwrap();
        assert_ne!(Identity::own(&file).unwrap().fingerprint(), first.fingerprint());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_replaced_and_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, other) = (folder.path().join("mpt0.tls"), folder.path().join("other"));
        fs::create_dir(&file).unwrap();
        let failure = Identity::own(&file).err().unwrap().to_string();
        assert!(failure.contains("cannot read") && failure.contains("hint:"), "{failure}");
        fs::remove_dir(&file).unwrap();
        fs::write(&other, "of somebody else").unwrap();
        std::os::unix::fs::symlink(&other, folder.path().join("mpt0.tls.new")).unwrap();
        Identity::own(&file).unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"of somebody else");
        assert!(fs::symlink_metadata(&file).unwrap().is_file());
    }

    #[test]
    fn files_without_a_certificate_are_refused_with_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
        let read =
            || Identity::read(Files::DISK, &chain, &key).err().map(|failure| failure.to_string()).unwrap_or_default();
        assert!(read().contains("cannot read") && read().contains("chain.pem"));
        let own = Identity::new().unwrap();
        fs::write(&chain, "").unwrap();
        fs::write(&key, &*own.key).unwrap();
        assert!(read().contains("there is no certificate") && read().contains("hint:"));
        fs::write(&chain, &own.chain).unwrap();
        assert_eq!(read(), "");
        fs::write(&key, &own.chain).unwrap();
        assert!(read().contains("no private key"), "{}", read());
        fs::write(&key, &*Identity::new().unwrap().key).unwrap();
        assert!(read().contains("key.pem: the private key is not that of the certificate"), "{}", read());
    }
}
