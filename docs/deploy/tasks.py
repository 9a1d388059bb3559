"""The function of the worker in compose.yaml and kubernetes.yaml."""


async def resize(message):
    print("resized", message.payload)  # your work; its exception decides the fate of the message
