//! The parts of the API description that apply to every path: error responses and authentication.

use utoipa::Modify;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder};

/// Adds these parts to the description.
pub struct CommonResponses;

impl Modify for CommonResponses {
    fn modify(&self, api: &mut OpenApi) {
        for item in api.paths.paths.values_mut() {
            let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
            for operation in operations.into_iter().flatten() {
                let responses = &mut operation.responses.responses;
                for (status, response) in responses.iter_mut() {
                    if let RefOr::T(response) = response
                        && response.description.is_empty()
                    {
                        usual_description(status).clone_into(&mut response.description);
                    }
                }
                for (status, what) in [
                    ("400", "the request cannot be right, whatever the state of the machine"),
                    ("401", "over the network: the request does not authenticate a client"),
                    ("403", "over the network: the token is read-only; or the operating system does not permit it"),
                    ("default", "any other error; docs/reference/errors.md lists the kinds with their statuses"),
                ] {
                    responses.entry(status.to_owned()).or_insert_with(|| RefOr::T(error(what)));
                }
            }
        }
        let token = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("over the network: a token of the daemon's token files; the socket asks for none"))
            .build();
        let certificate = SecurityScheme::MutualTls {
            description: Some("over the network: a certificate of the daemon's authority of clients".to_owned()),
            deprecated: None,
            extensions: None,
        };
        let components = api.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(token));
        components.add_security_scheme("certificate", certificate);
        let none: [String; 0] = [];
        api.security =
            Some(vec![SecurityRequirement::new("token", none.clone()), SecurityRequirement::new("certificate", none)]);
    }
}

/// Returns the usual description of a status, for responses without a description.
fn usual_description(status: &str) -> &'static str {
    match status {
        "200" => "done; the requested object, or its new state",
        "202" => "it has begun and goes on as a job",
        "404" => "there is no such thing",
        "409" => "refused in the present state",
        _ => "an error",
    }
}

fn error(what: &str) -> Response {
    let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
    ResponseBuilder::new().description(what).content("application/json", body).build()
}
