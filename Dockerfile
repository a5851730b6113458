# meshwright: core and the extra `web`, nothing else; serves unless it is given other words.
#   docker build --build-arg MESHWRIGHT_COMMIT="$(git rev-parse HEAD)" -t meshwright .
#   docker run -p 8417:8417 -e MESHWRIGHT_TOKEN=... meshwright
#   docker run --rm meshwright plan llama-3.1-70b --gpus 64xH100
FROM python:3.12-slim
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE NOTICE ./
COPY src src
ARG MESHWRIGHT_COMMIT=""
RUN MESHWRIGHT_COMMIT="$MESHWRIGHT_COMMIT" pip install --no-cache-dir --no-compile '.[web]' && rm -rf /src
RUN useradd --create-home --home-dir /service meshwright && mkdir /jobs && chown meshwright /jobs
USER meshwright
WORKDIR /service
EXPOSE 8417
VOLUME /jobs
ENTRYPOINT ["meshwright"]
CMD ["serve", "--host", "0.0.0.0", "--open", "--port", "8417", "--queue", "/jobs/jobs.db"]
