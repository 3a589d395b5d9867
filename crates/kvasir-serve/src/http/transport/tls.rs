//! TLS configuration (rustls with `ring`) from PEM files, which can be read again while serving.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::{ClientHello, ResolvesServerCert},
        sign::CertifiedKey,
    },
};

/// A certificate chain and its key, from PEM files. Clones share one certificate.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    certificates: PathBuf,
    key: PathBuf,
    current: Arc<Current>,
}

/// The certificate that new connections get.
#[derive(Debug)]
struct Current(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl TlsFiles {
    /// Reads a certificate chain and its key. Errors name the file.
    pub fn open(certificates: &Path, key: &Path) -> Result<Self, String> {
        let current = Arc::new(Current(RwLock::new(read(certificates, key)?)));
        Ok(Self { certificates: certificates.to_owned(), key: key.to_owned(), current })
    }

    /// Reads the files again, for connections from now on. On error the certificate stays.
    pub fn reload(&self) -> Result<(), String> {
        let read = read(&self.certificates, &self.key)?;
        *self.current.0.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    /// Acceptor for TLS 1.2 and 1.3.
    pub fn acceptor(&self) -> Result<TlsAcceptor, String> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_cert_resolver(self.current.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn read(certificates: &Path, key: &Path) -> Result<Arc<CertifiedKey>, String> {
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(certificates).and_then(|items| items.collect::<Result<_, _>>());
    let chain = chain.map_err(|error| format!("--tls-cert {}: {error}", certificates.display()))?;
    if chain.is_empty() {
        return Err(format!("--tls-cert {}: holds no certificate", certificates.display()));
    }
    let secret = PrivateKeyDer::from_pem_file(key);
    let secret = secret.map_err(|error| format!("--tls-key {}: {error}", key.display()))?;
    let certified = CertifiedKey::from_der(chain, secret, &ring::default_provider());
    certified.map(Arc::new).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            format!(
                "--tls-key {} is not the key of --tls-cert {}; give the two that were made together",
                key.display(),
                certificates.display()
            )
        }
        error => format!("--tls-cert {} with --tls-key {}: {error}", certificates.display(), key.display()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::transport::limit_listener::LimitListener;
    use axum::{Router, routing::get};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };
    use tokio_rustls::{
        TlsConnector,
        rustls::{ClientConfig, RootCertStore, pki_types::ServerName},
    };

    fn data(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
    }

    #[test]
    fn unusable_tls_files_are_named() {
        let (cert, key) = (data("test-cert.pem"), data("test-key.pem"));
        let files = TlsFiles::open(&cert, &key).unwrap();
        assert!(files.acceptor().is_ok() && files.reload().is_ok());
        let wrong = |cert: &Path, key: &Path| TlsFiles::open(cert, key).unwrap_err();
        let none = data("none.pem");
        assert!(wrong(&none, &key).starts_with(&format!("--tls-cert {}: ", none.display())));
        assert!(wrong(&cert, &none).starts_with(&format!("--tls-key {}: ", none.display())));
        assert!(wrong(&key, &key).contains("holds no certificate"));
        assert!(wrong(&cert, &cert).contains("test-cert.pem"));
    }

    /// Response to a client that trusts the certificate, for `path`, from a server that allows
    /// `max_connections` connections.
    async fn answer(max_connections: usize, path: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let files = TlsFiles::open(&data("test-cert.pem"), &data("test-key.pem")).unwrap();
        let acceptor = files.acceptor().unwrap();
        let router = Router::new().route("/live", get(async || "under TLS"));
        tokio::spawn(async move {
            axum::serve(LimitListener::new(listener, max_connections, Some(acceptor)), router).await
        });
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(data("test-cert.pem")).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A missing TLS close-notify is an error here; the bytes read are kept.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn trusting_tls_clients_are_answered() {
        let answer = answer(8, "/live").await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("under TLS"), "{answer}");
    }

    #[tokio::test]
    async fn tls_probes_need_no_ordinary_permit() {
        let probe = answer(0, "/live").await;
        assert!(probe.starts_with("HTTP/1.1 200") && probe.ends_with("under TLS"), "{probe}");
        let other = answer(0, "/v1/models").await;
        assert!(other.starts_with("HTTP/1.1 503"), "{other}");
    }
}
