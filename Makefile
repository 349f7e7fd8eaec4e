VENV := .venv
PY := $(VENV)/bin/python
.PHONY: protos
protos: ## regenerate the committed stubs from the contract
	$(PY) -m grpc_tools.protoc -I protos --python_out=protos --mypy_out=protos --grpc_python_out=protos --mypy_grpc_out=protos protos/turnkeeper/v1/*.proto
