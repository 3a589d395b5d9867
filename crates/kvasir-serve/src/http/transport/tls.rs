//! TLS configuration (rustls with `ring`) from PEM files.

use std::{path::Path, sync::Arc};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

/// Acceptor for TLS 1.2 and 1.3 from a PEM certificate chain and key. Errors name the file.
pub fn tls(certificates: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(certificates).and_then(|items| items.collect::<Result<_, _>>());
    let chain = chain.map_err(|error| format!("{}: {error}", certificates.display()))?;
    if chain.is_empty() {
        return Err(format!("{}: holds no certificate", certificates.display()));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{}: {error}", key.display()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret))
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                format!(
                    "{} is not the key of {}; give the two that were made together",
                    key.display(),
                    certificates.display()
                )
            }
            error => format!("{} with {}: {error}", certificates.display(), key.display()),
        })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
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
        assert!(tls(&cert, &key).is_ok());
        let wrong = |cert: &Path, key: &Path| tls(cert, key).err().unwrap();
        assert!(wrong(&data("none.pem"), &key).contains("none.pem"));
        assert!(wrong(&cert, &data("none.pem")).contains("none.pem"));
        assert!(wrong(&key, &key).contains("holds no certificate"));
        assert!(wrong(&cert, &cert).contains("test-cert.pem"));
    }

    /// Response to a client that trusts the certificate, for `path`, from a server that allows
    /// `max_connections` connections.
    async fn answer(max_connections: usize, path: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = tls(&data("test-cert.pem"), &data("test-key.pem")).unwrap();
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
