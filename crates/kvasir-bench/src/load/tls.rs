//! TLS for the load generator: the trusted root certificates and the client handshake.

use std::{io, path::Path, sync::Arc};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

/// Well-known locations of the system's root certificate bundle.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Root certificates trusted to sign a server's certificate.
#[derive(Clone, Debug)]
pub struct TrustedRoots(Arc<ClientConfig>);

impl TrustedRoots {
    /// Loads the roots of a PEM file, or of the system's bundle if `file` is `None`.
    pub fn of(file: Option<&Path>) -> Result<Self, String> {
        let system = || BUNDLES.iter().map(Path::new).find(|path| path.is_file());
        let file = file.or_else(system).ok_or("no certificates are found on this system; name a PEM file")?;
        let fail = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(file).map_err(|e| fail(&e))? {
            // A bundle may contain certificates that rustls cannot parse; skip them and use the
            // rest.
            let _ = roots.add(certificate.map_err(|e| fail(&e))?);
        }
        if roots.is_empty() {
            return Err(fail(&"holds no certificate that can be used"));
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| fail(&e))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }

    /// Performs the TLS handshake over `stream`, verifying the host name of `authority`.
    pub(super) async fn over(&self, stream: TcpStream, authority: &str) -> io::Result<TlsStream<TcpStream>> {
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        TlsConnector::from(self.0.clone()).connect(name, stream).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::http::{Address, Body, Connection};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };
    use tokio_rustls::{
        TlsAcceptor,
        rustls::{ServerConfig, pki_types::PrivateKeyDer},
    };

    fn data(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvasir-serve/tests/data").join(name)
    }

    /// Answers one request under TLS.
    async fn serve_once(listener: TcpListener) {
        let chain = vec![CertificateDer::from_pem_file(data("test-cert.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(data("test-key.pem")).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        // A client that does not roots the certificate aborts the handshake here.
        let Ok(mut stream) = TlsAcceptor::from(Arc::new(config)).accept(stream).await else { return };
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nunder").await;
        let _ = stream.flush().await;
    }

    async fn fetch(roots: &TrustedRoots) -> io::Result<Vec<u8>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let address = Address::parse(&format!("https://localhost:{port}")).map_err(io::Error::other)?;
        let (answer, ()) = tokio::join!(
            async {
                let mut connection = Connection::open(&address, Some(roots)).await?;
                let head = connection.request(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
                let (mut body, mut text) = (Body::new(head), Vec::new());
                while connection.more(&mut body, &mut text).await? {}
                Ok(text)
            },
            serve_once(listener)
        );
        answer
    }

    #[tokio::test]
    async fn tls_connects_only_to_trusted_certificates() {
        let roots = TrustedRoots::of(Some(&data("test-cert.pem"))).unwrap();
        assert_eq!(fetch(&roots).await.unwrap(), b"under");
        let nobody = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let error = fetch(&TrustedRoots(Arc::new(nobody))).await.unwrap_err();
        assert!(error.to_string().contains("certificate"), "{error}");
    }

    #[test]
    fn a_file_without_certificates_is_named() {
        let wrong = |name: &str| TrustedRoots::of(Some(&data(name))).unwrap_err();
        assert!(wrong("none.pem").contains("none.pem"));
        assert!(wrong("test-key.pem").contains("no certificate"));
    }
}
